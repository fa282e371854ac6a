"""
Draws the timeline of a run with one collector: python make_schedule.py METRICS.jsonl OUT.svg [--degree N].

The file says when each batch was paid off and how long its collect, its updates and each evaluation took. When a
collect began it does not say; that follows from the gate's rule: as soon as the collector was free and fewer than
DEGREE batches were outstanding. The drawing checks that no batch is taken before its collect has ended.
"""
import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use('svg')
import matplotlib.pyplot as plt  # noqa: E402

SLACK_S = 0.25  # time to load weights and to carry a batch over, which no event records
COLOURS = ('#3b6ea8', '#d9822b')  # batches alternate
PAUSE = '#7a9e7e'


def spans(events: list[dict], degree: int) -> tuple[list, list, list]:
    """(number, begin, end) of every collect and of every batch's updates, (begin, end) of every evaluation."""
    batches = [event for event in events if event['event'] == 'batch']
    if {event['worker'] for event in batches} != {0}:
        raise SystemExit('this drawing is made for one collector')
    learns = [(event['number'], event['time'] - event['learn_s'], event['time']) for event in batches]
    collects: list[tuple[int, float, float]] = []
    for index, event in enumerate(batches):
        if index == 0:  # the learner waits for the first batch, so that its collect ends where its updates begin
            begin = learns[0][1] - event['collect_s']
        else:
            paid = learns[index - degree][2] if index >= degree else collects[-1][2]
            begin = max(collects[-1][2], paid)
        collects.append((event['number'], begin, begin + event['collect_s']))
    for (number, _, end), (_, taken, _) in zip(collects, learns, strict=True):
        if end > taken + SLACK_S:
            raise SystemExit(f'batch {number} is taken {end - taken:.2f} s before its collect ends: other --degree?')
    evaluations = [
        (event['time'] - event['duration_s'], event['time']) for event in events if event['event'] == 'evaluation'
    ]
    return collects, learns, evaluations


def draw(events: list[dict], degree: int, out: Path) -> None:
    collects, learns, evaluations = spans(events, degree)
    origin = collects[0][1]
    figure, axes = plt.subplots(figsize=(9, 2.1))
    for row, bars in ((1.0, collects), (0.0, learns)):
        for number, begin, end in bars:
            axes.barh(
                row, end - begin, left=begin - origin, height=0.62, color=COLOURS[number % 2], edgecolor='white',
                linewidth=1.0
            )
            axes.text((begin + end) / 2 - origin, row, str(number), color='white', ha='center', va='center', fontsize=9)
    for begin, end in evaluations:
        axes.barh(0.0, end - begin, left=begin - origin, height=0.62, color=PAUSE, edgecolor='white', linewidth=1.0)
        axes.text((begin + end) / 2 - origin, 0.0, 'eval', color='white', ha='center', va='center', fontsize=7)
    axes.set_yticks([1.0, 0.0], ['collector', 'learner'], fontsize=10)
    axes.set_ylim(-0.5, 1.5)
    axes.set_xlim(0, learns[-1][2] - origin + 0.1)
    axes.set_xlabel('seconds since the first collect; the number in a bar is the batch', fontsize=9)
    for side in ('top', 'right', 'left'):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis='y', length=0)
    figure.tight_layout()
    figure.savefig(out, metadata={'Date': None})


def main() -> None:
    parser = argparse.ArgumentParser(description='Draw the timeline of a run with one collector.')
    parser.add_argument('metrics', type=Path)
    parser.add_argument('out', type=Path)
    parser.add_argument('--degree', type=int, default=2)
    arguments = parser.parse_args()
    matplotlib.rcParams['svg.hashsalt'] = 'schedule'  # the same file every time
    lines = arguments.metrics.read_text(encoding='utf-8').splitlines()
    draw([json.loads(line) for line in lines], arguments.degree, arguments.out)


if __name__ == '__main__':
    main()
