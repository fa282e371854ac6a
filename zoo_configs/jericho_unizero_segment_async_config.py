import torch
from easydict import EasyDict

# The function of lzero_async that this config is made for, as `lzero-async train` reads it.
entry = 'train_unizero_segment_async'

# ==============================================================
# begin of what users change most often
# ==============================================================
# A story file; None is the shipped game. `lzero-async train FILE --set env.game_path=zork1.z5` plays another one.
game_path = None
# A directory or the name of a Hugging Face model; None is the packaged MiniLM.
encoder = None
collector_env_num = 4
num_segments = collector_env_num  # the segment collector wants them equal
# The game has no dice but the search has: it chooses among equals at random. With one episode per evaluation, luck
# would end a run within a few hundred steps.
evaluator_env_num = 8
num_simulations = 16
max_env_step = int(1e4)
batch_size = 64
replay_ratio = 0.5
game_segment_length = 25
num_unroll_steps = 5
td_steps = 5
infer_context_length = 2
max_seq_len = 96  # tokens of an observation, with its valid actions; the larger games need up to 512
device = 'cuda' if torch.cuda.is_available() else 'cpu'

# How often the policy targets in the buffer are searched anew: below 1, once in 1/freq epochs; from 1 on, freq times
# per epoch. So small a value means never.
buffer_reanalyze_freq = 1 / 100000
# Each time, this many sequences of num_unroll_steps transitions ...
reanalyze_batch_size = 160
# ... out of the oldest part of the buffer (at most 0.75).
reanalyze_partition = 0.75
# The part of every training batch whose policy targets are searched anew.
reanalyze_ratio = 0

# Collectors, each in a process of its own with collector_env_num environments.
num_collectors = 1
# ==============================================================
# end of what users change most often
# ==============================================================

jericho_unizero_segment_async_config = dict(
    exp_name='data_lzero_async/jericho_unizero_segment_seed0',
    env=dict(
        game_path=game_path,
        tokenizer_path=encoder,
        # Where these are None, what suits the game: actions that a state may have at most, steps of an episode, and the
        # mean return of an evaluation that ends training.
        max_action_num=None,
        max_steps=None,
        stop_value=None,
        max_seq_len=max_seq_len,
        for_unizero=True,
        # (int) Turns of the episode that an observation's `history` holds; the model does not read them.
        history_length=2,
        # (float) A call into the game interpreter that takes longer than so many seconds ends the worker.
        game_timeout_s=60,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        n_evaluator_episode=evaluator_env_num,
        manager=dict(shared_memory=False),
    ),
    policy=dict(
        model=dict(
            # Both follow the environment's max_seq_len and max_action_num.
            observation_shape=None,
            action_space_size=None,
            encoder_url=encoder,
            model_type='mlp',
            continuous_action_space=False,
            norm_type='BN',
            world_model_cfg=dict(
                obs_type='text',
                policy_entropy_weight=5e-3,
                continuous_action_space=False,
                max_blocks=num_unroll_steps,
                max_tokens=2 * num_unroll_steps,  # an observation and an action per block
                context_length=2 * infer_context_length,
                device=device,
                action_space_size=None,
                num_layers=1,
                num_heads=4,
                embed_dim=64,
                env_num=max(collector_env_num, evaluator_env_num),
                collector_env_num=collector_env_num,
                evaluator_env_num=evaluator_env_num,
            ),
        ),
        # (str) A checkpoint to start from; None starts afresh.
        model_path=None,
        use_wandb=False,
        cuda=device == 'cuda',
        use_augmentation=False,
        use_priority=False,
        env_type='not_board_games',
        action_type='fixed_action_space',
        game_segment_length=game_segment_length,
        num_segments=num_segments,
        num_unroll_steps=num_unroll_steps,
        td_steps=td_steps,
        # (int) Updates per collected batch; None makes it replay_ratio times the batch's transitions.
        update_per_collect=None,
        replay_ratio=replay_ratio,
        batch_size=batch_size,
        optim_type='AdamW',
        piecewise_decay_lr_scheduler=False,
        # (float) With 3e-4 a model this small has reached 5 points of 10 after 10,000 env steps.
        learning_rate=1e-3,
        target_update_freq=100,
        grad_clip_value=5,
        num_simulations=num_simulations,
        manual_temperature_decay=False,
        fixed_temperature_value=0.5,
        # (int) Updates between two evaluations.
        eval_freq=200,
        # (int) In transitions.
        replay_buffer_size=int(1e5),
        train_start_after_envsteps=0,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        # ============= reanalysis =============
        reanalyze_ratio=reanalyze_ratio,
        buffer_reanalyze_freq=buffer_reanalyze_freq,
        reanalyze_batch_size=reanalyze_batch_size,
        reanalyze_partition=reanalyze_partition,
        # ============= collect, learn and evaluate at the same time =============
        # (bool) False calls upstream's serial entry with this same config, defects on text games included.
        enable_async_training=True,
        # (int) How many batches may be outstanding: being collected, waiting, or being learnt from. 0: serial, for
        # debugging. 1: collector and learner take turns. 2: one batch is collected while another is learnt from.
        # -1: tuned from measured times. Left out, as here, it is num_collectors + 1.
        # off_policy_degree=2,
        # (int) How many finished batches may wait for the learner; a full queue makes collectors wait, nothing is lost.
        data_queue_size=10,
        # (bool) True evaluates beside training. False lets the learner wait for the result, so that a solved run ends
        # at once; an evaluation of the shipped game is short.
        enable_async_eval=False,
        # (bool) True logs every admission, publication, take and wait.
        enable_async_debug_log=False,
        async_pipeline=dict(
            # (str) Where workers live: 'process' or 'thread'. Only a process can be ended when a game hangs.
            placement='process',
            num_collectors=num_collectors,
        ),
    ),
)
jericho_unizero_segment_async_config = EasyDict(jericho_unizero_segment_async_config)
main_config = jericho_unizero_segment_async_config

jericho_unizero_segment_async_create_config = dict(
    env=dict(
        type='jericho_async',
        import_names=['lzero_async.text.jericho_env'],
    ),
    env_manager=dict(type='base'),
    policy=dict(
        type='unizero',
        import_names=['lzero.policy.unizero'],
    ),
)
jericho_unizero_segment_async_create_config = EasyDict(jericho_unizero_segment_async_create_config)
create_config = jericho_unizero_segment_async_create_config

# Worker processes are spawned and import this file again: without the guard each would start a run of its own.
if __name__ == '__main__':
    import argparse

    from lzero_async import train_unizero_segment_async

    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--quick-test', action='store_true', help='a minute that shows that everything works')
    arguments = parser.parse_args()
    if arguments.quick_test:
        main_config.exp_name += '_quick_test'
        main_config.policy.update(num_simulations=8, eval_freq=50)
        max_env_step = 600

    train_unizero_segment_async([main_config, create_config], seed=arguments.seed, max_env_step=max_env_step)
