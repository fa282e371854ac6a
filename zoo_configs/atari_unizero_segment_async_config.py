import torch
from easydict import EasyDict
from zoo.atari.config.atari_env_action_space_map import atari_env_action_space_map

# The function of lzero_async that this config is made for, as `lzero-async train` reads it.
entry = 'train_unizero_segment_async'

# ==============================================================
# begin of what users change most often
# ==============================================================
# Needs the Atari ROMs, opencv-python and, for any speed, a GPU. Change the game here: the size of its action space
# follows.
env_id = 'PongNoFrameskip-v4'
action_space_size = atari_env_action_space_map[env_id]

collector_env_num = 8
num_segments = collector_env_num  # the segment collector wants them equal
evaluator_env_num = 3
num_simulations = 50
max_env_step = int(5e5)
batch_size = 64
replay_ratio = 0.25
game_segment_length = 20
num_unroll_steps = 10
td_steps = 5
infer_context_length = 4
num_layers = 2
device = 'cuda' if torch.cuda.is_available() else 'cpu'

# How often the policy targets in the buffer are searched anew: below 1, once in 1/freq epochs; from 1 on, freq times
# per epoch.
buffer_reanalyze_freq = 1 / 50
# Each time, this many sequences of num_unroll_steps transitions ...
reanalyze_batch_size = 160
# ... out of the oldest part of the buffer (at most 0.75).
reanalyze_partition = 0.75
# The part of every training batch whose policy targets are searched anew.
reanalyze_ratio = 0

# Collectors, each in a process of its own with collector_env_num environments.
num_collectors = 2
# ==============================================================
# end of what users change most often
# ==============================================================

atari_unizero_segment_async_config = dict(
    exp_name=f'data_lzero_async/{env_id[:-14].lower()}_unizero_segment_seed0',
    env=dict(
        env_id=env_id,
        # (float) Training ends when an evaluation's mean return reaches this: never, in effect.
        stop_value=int(1e6),
        observation_shape=(3, 64, 64),
        gray_scale=False,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        n_evaluator_episode=evaluator_env_num,
        manager=dict(shared_memory=False),
    ),
    policy=dict(
        # (int) Updates between two checkpoints; ckpt_best is written whenever an evaluation is the best so far.
        learn=dict(learner=dict(hook=dict(save_ckpt_after_iter=50000))),
        model=dict(
            observation_shape=(3, 64, 64),
            action_space_size=action_space_size,
            support_scale=300,
            world_model_cfg=dict(
                support_size=601,
                policy_entropy_weight=5e-3,
                continuous_action_space=False,
                max_blocks=num_unroll_steps,
                max_tokens=2 * num_unroll_steps,  # an observation and an action per block
                context_length=2 * infer_context_length,
                device=device,
                action_space_size=action_space_size,
                num_layers=num_layers,
                num_heads=8,
                embed_dim=768,
                env_num=max(collector_env_num, evaluator_env_num),
                obs_type='image',
                num_simulations=num_simulations,
                rotary_emb=False,
            ),
        ),
        # (str) A checkpoint to start from; None starts afresh.
        model_path=None,
        use_wandb=False,
        cuda=device == 'cuda',
        use_augmentation=False,
        use_priority=False,
        manual_temperature_decay=False,
        threshold_training_steps_for_final_temperature=int(2.5e4),
        env_type='not_board_games',
        game_segment_length=game_segment_length,
        num_segments=num_segments,
        num_unroll_steps=num_unroll_steps,
        td_steps=td_steps,
        # (int) Updates per collected batch; None makes it replay_ratio times the batch's transitions.
        update_per_collect=None,
        replay_ratio=replay_ratio,
        batch_size=batch_size,
        optim_type='AdamW',
        learning_rate=1e-4,
        grad_clip_value=5,
        num_simulations=num_simulations,
        # (int) Updates between two evaluations.
        eval_freq=int(5e3),
        # (int) In transitions. Each takes about 89 KB, padding included: 45 GB for the 5e5 of a whole run.
        replay_buffer_size=int(1e6),
        train_start_after_envsteps=0,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        # ============= reanalysis =============
        reanalyze_ratio=reanalyze_ratio,
        buffer_reanalyze_freq=buffer_reanalyze_freq,
        reanalyze_batch_size=reanalyze_batch_size,
        reanalyze_partition=reanalyze_partition,
        # ============= collect, learn and evaluate at the same time =============
        # (bool) False calls upstream's serial entry with this same config.
        enable_async_training=True,
        # (int) How many batches may be outstanding: being collected, waiting, or being learnt from. 0: serial, for
        # debugging. 1: collector and learner take turns. 2: one batch is collected while another is learnt from.
        # -1: tuned from measured times. Left out, as here, it is num_collectors + 1.
        # off_policy_degree=3,
        # (int) How many finished batches may wait for the learner; a full queue makes collectors wait, nothing is lost.
        data_queue_size=10,
        # (bool) True evaluates beside training: games take minutes, and the learner need not wait for them.
        enable_async_eval=True,
        # (bool) True logs every admission, publication, take and wait.
        enable_async_debug_log=False,
        async_pipeline=dict(
            # (str) Where workers live: 'process' or 'thread'.
            placement='process',
            num_collectors=num_collectors,
        ),
    ),
)
atari_unizero_segment_async_config = EasyDict(atari_unizero_segment_async_config)
main_config = atari_unizero_segment_async_config

atari_unizero_segment_async_create_config = dict(
    env=dict(
        type='atari_lightzero',
        import_names=['zoo.atari.envs.atari_lightzero_env'],
    ),
    # An emulator is worth a process: the environments of a collector step side by side.
    env_manager=dict(type='subprocess'),
    policy=dict(
        type='unizero',
        import_names=['lzero.policy.unizero'],
    ),
)
atari_unizero_segment_async_create_config = EasyDict(atari_unizero_segment_async_create_config)
create_config = atari_unizero_segment_async_create_config

# Worker processes are spawned and import this file again: without the guard each would start a run of its own.
if __name__ == '__main__':
    from lzero_async import train_unizero_segment_async

    train_unizero_segment_async([main_config, create_config], seed=0, max_env_step=max_env_step)
