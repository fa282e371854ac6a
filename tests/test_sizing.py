"""The rule behind the defaults and the doctor: what it chooses on made-up costs, and that the entries follow it."""
from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async import AsyncConfig
from lzero_async import config as config_module
from lzero_async.sizing import (
    WORTHWHILE,
    BatchCosts,
    Given,
    best_s,
    choose,
    default_threads,
    outlook,
    pays,
    serial_s,
    stages_s,
)
from lzero_async.telemetry.recorder import Costs

pytestmark = pytest.mark.unittest

seconds = st.integers(1, 1000).map(float)
batch_costs = st.builds(BatchCosts, seconds, seconds, seconds)
numbers = st.integers(1, 64)
in_time = settings(deadline=None, max_examples=300)  # a busy machine is no failure


# ------------------------------------------------------------------------------------------------------------ the bound


def test_the_example_of_the_documentation():
    costs = BatchCosts(0.96, 1.18, 0.04)
    assert serial_s(costs) == pytest.approx(2.18)
    assert best_s(costs, 1, 2, async_eval=False) == pytest.approx(1.22)
    assert best_s(costs, 1, 2, async_eval=True) == pytest.approx(1.18)
    assert best_s(costs, 1, 1, async_eval=True) == pytest.approx(2.18)


def test_work_counts_against_the_cores_where_it_is_not_the_sum():
    two_threads = BatchCosts(1.0, 1.0, 0.0, cpu=3.0)
    assert serial_s(two_threads) == 2.0
    assert best_s(two_threads, 1, 2, False) == 1.5 and best_s(two_threads, 1, 4, False) == 1.0


@in_time
@given(batch_costs, numbers, numbers, st.booleans())
def test_the_bound_lies_between_serial_and_perfect_overlap(costs, collectors, cores, async_eval):
    best = best_s(costs, collectors, cores, async_eval)
    assert serial_s(costs) / cores <= best <= serial_s(costs) * (1 + 1e-12)
    assert best == max(stages_s(costs, collectors, cores, async_eval).values())


@in_time
@given(batch_costs, numbers, numbers)
def test_more_collectors_more_cores_and_asynchronous_evaluation_never_hurt(costs, collectors, cores):
    best = best_s(costs, collectors, cores, False)
    assert best_s(costs, collectors + 1, cores, False) <= best
    assert best_s(costs, collectors, cores + 1, False) <= best
    assert best_s(costs, collectors, cores, True) <= best


def test_the_recorder_uses_the_same_bound(monkeypatch):
    moments = iter([0.0, 2.0, 4.0])
    monkeypatch.setattr('lzero_async.telemetry.recorder.time.monotonic', lambda: next(moments))
    costs = Costs()
    for number in range(3):
        costs.trained(number, admitted=1, collect_s=1.0, learn_s=1.5)
    assert costs.attained(1, 2, False) == best_s(BatchCosts(1.0, 1.5, 0.0), 1, 2, False) / 2.0


def test_an_evaluation_after_the_last_batch_is_not_on_the_clock(monkeypatch):
    moments = iter([0.0, 2.0, 5.0])
    monkeypatch.setattr('lzero_async.telemetry.recorder.time.monotonic', lambda: next(moments))
    costs = Costs()
    for number in range(3):
        costs.trained(number, admitted=1, collect_s=1.0, learn_s=1.5)
        if number:
            costs.evaluated(1.0)
    assert costs.per_batch()['eval'] == 0.5


# --------------------------------------------------------------------------------------------------- without any costs


@pytest.mark.parametrize('accelerator', [False, True])
def test_without_costs_one_collector_in_a_process(accelerator):
    choice = choose(8, accelerator)
    assert (choice.placement, choice.num_collectors, choice.off_policy_degree) == ('process', 1, 2)
    assert choice.threads == default_threads(8, 1, 'process') == {'learner': 7, 'collector': 1, 'evaluator': 1}
    assert set(choice.reasons) == {'placement', 'num_collectors', 'off_policy_degree', 'threads'}
    assert ('not measured yet' in choice.reasons['placement']) == accelerator
    assert 'lzero-async doctor' in choice.reasons['num_collectors']


def test_one_core_says_that_nothing_can_be_gained():
    for costs in (None, {1: BatchCosts(9.0, 1.0)}):
        choice = choose(1, False, costs)
        assert choice.num_collectors == 1 and 'nothing can be gained' in choice.reasons['num_collectors']
        assert set(choice.threads.values()) == {1}


def test_what_is_given_stays():
    choice = choose(8, False, {1: BatchCosts(9.0, 1.0)}, given=Given('thread', 3, 7, {'learner': 2}))
    assert (choice.placement, choice.num_collectors, choice.off_policy_degree) == ('thread', 3, 7)
    assert choice.threads == {'learner': 2, 'collector': 1, 'evaluator': 1}
    assert [choice.reasons[name] for name in ('placement', 'num_collectors', 'off_policy_degree')] == ['given'] * 3


@pytest.mark.parametrize(
    'given_keys', [
        {}, {'placement': 'thread'}, {'num_collectors': 3}, {'off_policy_degree': 5}, {'threads': {'collector': 2}},
        {'num_collectors': 2, 'threads': {'learner': 1, 'collector': 1, 'evaluator': 1}}
    ]
)
@pytest.mark.parametrize('cores', [1, 2, 8])
def test_the_defaults_of_the_entries_are_the_rule(monkeypatch, cores, given_keys):
    monkeypatch.setattr(config_module, 'available_cores', lambda: cores)
    config = AsyncConfig.from_policy({'async_pipeline': given_keys})
    choice = choose(cores, torch.cuda.is_available(), given=Given(**given_keys))
    for name in ('placement', 'num_collectors', 'off_policy_degree', 'threads'):
        assert getattr(config, name) == getattr(choice, name)
        if name not in given_keys or name == 'threads' and len(given_keys['threads']) < 3:
            assert choice.reasons[name] in config.sources[name] and 'default' in config.sources[name]
        else:
            assert config.sources[name] == f'policy.async_pipeline.{name}'


# ---------------------------------------------------------------------------------------------------------- with costs


@pytest.mark.parametrize(
    'costs, cores, collectors', [
        (BatchCosts(1.0, 4.0), 8, 1),  # learning is the bottleneck
        (BatchCosts(4.0, 1.0), 2, 1),  # the other core is the learner's
        (BatchCosts(4.0, 1.0), 8, 4),  # until collecting is no slower than learning
        (BatchCosts(4.0, 1.0, 1.0), 8, 2),  # which evaluations hold up
        (BatchCosts(4.2, 1.0), 8, 4),  # a fifth would gain less than 5 %
        (BatchCosts(100.0, 1.0), 4, 3),  # a core is left for the learner
        (BatchCosts(6.0, 2.0), 3, 2),
    ]
)
def test_as_many_collectors_as_pay(costs, cores, collectors):
    choice = choose(cores, False, {1: costs})
    assert choice.num_collectors == collectors and choice.off_policy_degree == collectors + 1
    assert 'bound by' in choice.reasons['num_collectors']


def test_a_given_degree_limits_the_collectors():
    costs = {1: BatchCosts(10.0, 1.0)}
    for degree, collectors in ((0, 1), (1, 1), (2, 1), (3, 2), (50, 7), (-1, 7)):
        assert choose(8, False, costs, given=Given(off_policy_degree=degree)).num_collectors == collectors


@in_time
@given(batch_costs, st.integers(2, 64), st.booleans())
def test_the_choice_is_the_smallest_that_is_good_enough(costs, cores, async_eval):
    chosen = choose(cores, False, {1: costs}, async_eval).num_collectors
    assert 1 <= chosen <= cores - 1

    def one_more_pays(collectors: int) -> bool:
        return pays(*(best_s(costs, count, cores, async_eval) for count in (collectors, collectors + 1)))

    assert all(one_more_pays(fewer) for fewer in range(1, chosen))
    assert chosen == cores - 1 or not one_more_pays(chosen)


def test_five_per_cent_are_not_more_than_five_per_cent():
    assert WORTHWHILE == 0.05
    assert pays(100.0, 94.9) and not pays(100.0, 95.0) and not pays(100.0, 100.0) and not pays(0.0, 0.0)
    # The twentieth collector gains exactly that, in whichever unit.
    for collect in (21.0, 22.0, 23.0, 24.0):
        assert choose(64, False, {1: BatchCosts(collect, 0.1)}).num_collectors == 19


@in_time
@given(batch_costs, st.integers(2, 64), st.booleans(), seconds)
def test_dearer_collects_never_ask_for_fewer_collectors(costs, cores, async_eval, more):
    dearer = BatchCosts(costs.collect + more, costs.learn, costs.evaluate)
    fewer, enough = (choose(cores, False, {1: item}, async_eval).num_collectors for item in (costs, dearer))
    assert fewer <= enough


@in_time
@given(batch_costs, st.integers(2, 64), st.booleans(), st.sampled_from([0.25, 2.0, 1024.0]))
def test_the_unit_of_time_does_not_matter(costs, cores, async_eval, factor):
    scaled = BatchCosts(costs.collect * factor, costs.learn * factor, costs.evaluate * factor)
    one, other = (choose(cores, False, {1: item}, async_eval) for item in (costs, scaled))
    assert (one.num_collectors, one.threads) == (other.num_collectors, other.threads)


# ------------------------------------------------------------------------------------------------ the learner's threads


def by_threads(collect: float, *learn: float) -> dict[int, BatchCosts]:
    """Costs with 1, 2, 4 ... learner threads that are all busy."""
    return {
        2**power: BatchCosts(collect, item, 0.0, cpu=collect + item * 2**power) for power, item in enumerate(learn)
    }


@pytest.mark.parametrize(
    'costs, cores, threads', [
        (by_threads(1.0, 4.0, 2.2, 1.5), 8, 4),  # learning is the bottleneck and gets faster
        (by_threads(1.0, 4.0, 3.9, 3.8), 8, 1),  # hardly faster: not worth the cores
        (by_threads(1.0, 4.0, 8.0, 9.0), 8, 1),  # a small model is slower with more
        (by_threads(1.0, 4.0, 2.2, 1.5), 2, 1),  # the other core is the collector's
        (by_threads(9.0, 1.0, 0.5, 0.3), 2, 1),  # collecting is the bottleneck
    ]
)
def test_the_learner_gets_the_threads_that_pay(costs, cores, threads):
    choice = choose(cores, False, costs)
    assert choice.threads == {'learner': threads, 'collector': 1, 'evaluator': 1}
    assert 'learning a batch takes' in choice.reasons['threads']


def test_given_threads_are_looked_up_among_the_measured():
    costs = by_threads(1.0, 4.0, 2.0)
    assert outlook(costs, 1, 8, False, learner_threads=3).learner_threads == 2
    assert outlook(costs, 7, 8, False).learner_threads == 1
    assert outlook({4: BatchCosts(1.0, 1.0)}, 1, 2, False).learner_threads == 4


@in_time
@given(seconds, st.lists(seconds, min_size=1, max_size=5), numbers, st.integers(1, 16))
def test_no_thread_count_that_fits_is_much_better(collect, learn, cores, collectors):
    costs = by_threads(collect, *learn)
    look = outlook(costs, collectors, cores, False)
    fitting = [count for count in costs if count <= max(1, cores - collectors)]
    assert look.learner_threads in fitting
    assert look.best_s == best_s(costs[look.learner_threads], collectors, cores, False)
    assert not any(pays(look.best_s, best_s(costs[count], collectors, cores, False)) for count in fitting)
