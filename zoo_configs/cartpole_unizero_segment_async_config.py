import torch
from easydict import EasyDict

# The function of lzero_async that this config is made for, as `lzero-async train` reads it.
entry = 'train_unizero_segment_async'

# ==============================================================
# begin of what users change most often
# ==============================================================
collector_env_num = 8
num_segments = collector_env_num  # the segment collector wants them equal
evaluator_env_num = 8
num_simulations = 25
max_env_step = int(1.5e4)
batch_size = 64
replay_ratio = 1.0
game_segment_length = 50
num_unroll_steps = 5
td_steps = 5
device = 'cuda' if torch.cuda.is_available() else 'cpu'

# How often the policy targets in the buffer are searched anew: below 1, once in 1/freq epochs; from 1 on, freq times
# per epoch. So small a value means never: CartPole does not need it.
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

cartpole_unizero_segment_async_config = dict(
    exp_name='data_lzero_async/cartpole_unizero_segment_seed0',
    env=dict(
        env_id='CartPole-v0',
        # (float) Training ends when an evaluation's mean return reaches this; 200 is the most there is.
        stop_value=195,
        continuous=False,
        manually_discretization=False,
        collector_env_num=collector_env_num,
        evaluator_env_num=evaluator_env_num,
        n_evaluator_episode=evaluator_env_num,
        manager=dict(shared_memory=False),
    ),
    policy=dict(
        model=dict(
            observation_shape=4,
            action_space_size=2,
            self_supervised_learning_loss=True,
            discrete_action_encoding_type='one_hot',
            norm_type='BN',
            model_type='mlp',
            world_model_cfg=dict(
                max_blocks=10,
                max_tokens=2 * 10,  # an observation and an action per block
                context_length=2 * 4,
                device=device,
                action_space_size=2,
                num_layers=2,
                num_heads=2,
                embed_dim=64,
                env_num=max(collector_env_num, evaluator_env_num),
                collector_env_num=collector_env_num,
                evaluator_env_num=evaluator_env_num,
                obs_type='vector',
                norm_type='BN',
                rotary_emb=True,
            ),
        ),
        # (str) A checkpoint to start from; None starts afresh.
        model_path=None,
        use_wandb=False,
        cuda=device == 'cuda',
        use_augmentation=False,
        use_priority=False,
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
        piecewise_decay_lr_scheduler=False,
        # (float) With upstream's 1e-4 a model this small has learnt half of the way after 15,000 env steps.
        learning_rate=1e-3,
        target_update_freq=100,
        grad_clip_value=5,
        num_simulations=num_simulations,
        # (int) Updates between two evaluations.
        eval_freq=400,
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
        # (bool) False calls upstream's serial entry with this same config.
        enable_async_training=True,
        # (int) How many batches may be outstanding: being collected, waiting, or being learnt from. 0: serial, for
        # debugging. 1: collector and learner take turns. 2: one batch is collected while another is learnt from.
        # -1: tuned from measured times. Left out, as here, it is num_collectors + 1.
        # off_policy_degree=2,
        # (int) How many finished batches may wait for the learner; a full queue makes collectors wait, nothing is lost.
        data_queue_size=10,
        # (bool) True evaluates beside training. False lets the learner wait for the result, so that a solved run ends
        # at once; evaluations of CartPole are short.
        enable_async_eval=False,
        # (bool) True logs every admission, publication, take and wait.
        enable_async_debug_log=False,
        async_pipeline=dict(
            # (str) Where workers live: 'process' or 'thread'. Searching and learning on a CPU cannot overlap in
            # threads of one Python process.
            placement='process',
            num_collectors=num_collectors,
        ),
    ),
)
cartpole_unizero_segment_async_config = EasyDict(cartpole_unizero_segment_async_config)
main_config = cartpole_unizero_segment_async_config

cartpole_unizero_segment_async_create_config = dict(
    env=dict(
        type='cartpole_lightzero',
        import_names=['zoo.classic_control.cartpole.envs.cartpole_lightzero_env'],
    ),
    # Eight tiny environments step faster one after another in their worker than through a subprocess each.
    env_manager=dict(type='base'),
    policy=dict(
        type='unizero',
        import_names=['lzero.policy.unizero'],
    ),
)
cartpole_unizero_segment_async_create_config = EasyDict(cartpole_unizero_segment_async_create_config)
create_config = cartpole_unizero_segment_async_create_config

# Worker processes are spawned and import this file again: without the guard each would start a run of its own.
if __name__ == '__main__':
    from lzero_async import train_unizero_segment_async

    train_unizero_segment_async([main_config, create_config], seed=0, max_env_step=max_env_step)
