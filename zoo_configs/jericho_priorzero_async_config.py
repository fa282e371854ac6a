import copy

from easydict import EasyDict

from zoo_configs import jericho_unizero_segment_async_config as unizero

# The function of lzero_async that this config is made for, as `lzero-async train` reads it.
entry = 'train_priorzero_async'

# ==============================================================
# begin of what users change most often; games, environments and the world model are those of the UniZero config
# ==============================================================
# A directory with a causal language model of Hugging Face's form, or a .gguf file; None is the packaged SmolLM2-135M.
llm_path = None
# How much of a root's policy is the language model's.
prior_weight = 0.25
# False leaves the language model as it is.
train_llm = True
# Turns of the episode that the language model is told, beside the present observation.
history_length = 1
max_env_step = int(3e3)
# ==============================================================
# end of what users change most often
# ==============================================================

main_config = copy.deepcopy(unizero.main_config)
main_config.exp_name = 'data_lzero_async/jericho_priorzero_seed0'
main_config.env.history_length = history_length
main_config.policy.priorzero = EasyDict(
    # Any fields of `HFOptions`; or backend='openai' with base_url and model, for a server (vLLM and others) that is not
    # trained; or backend='uniform'.
    llm=dict(backend='hf', path=llm_path, lr=3e-4),
    # p = w * softmax(llm / temperature) + (1 - w) * softmax(world model). 'fixed': w is weight. 'adaptive': weight
    # times 1 - the world model's entropy over its maximum. 'llm' and 'world_model': one of them alone.
    mixing=dict(mode='fixed', weight=prior_weight, temperature=1.0),
    train=dict(
        enabled=train_llm,
        # (Optional[int]) As off_policy_degree, on the language model's own axis; None is the same number.
        off_policy_degree=None,
        # (float) Records trained per record collected. On a CPU an update of the packaged model takes seconds.
        replay_ratio=0.1,
        batch_size=4,
    ),
)
create_config = copy.deepcopy(unizero.create_config)

# Worker processes are spawned and import this file again: without the guard each would start a run of its own.
if __name__ == '__main__':
    import argparse

    from lzero_async import train_priorzero_async

    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--quick-test', action='store_true', help='a few minutes that show that everything works')
    arguments = parser.parse_args()
    if arguments.quick_test:
        main_config.exp_name += '_quick_test'
        main_config.policy.update(num_simulations=8, eval_freq=50)
        main_config.policy.priorzero.train.held_out = 8
        max_env_step = 300

    train_priorzero_async([main_config, create_config], seed=arguments.seed, max_env_step=max_env_step)
