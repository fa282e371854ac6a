"""The documentation: its snippets run, its links lead somewhere, its tables are complete, its messages are real."""
from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from urllib.parse import unquote

import pytest

from lzero_async import AsyncConfig
from lzero_async.config import UPSTREAM_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / 'README.md', ROOT / 'README.zh.md', *sorted((ROOT / 'docs').glob('*.md'))]
BLOCK = re.compile(r'(?:<!-- (run|file): (\S+) -->\n)?```python\n(.*?)^```$', re.DOTALL | re.MULTILINE)
PATIENCE_S = 240


@dataclass(frozen=True)
class Snippet:
    page: Path
    line: int
    kind: str | None  # run, file or None
    word: str | None  # the test's marker, or the file's name
    code: str

    @property
    def name(self) -> str:
        return f'{self.page.relative_to(ROOT)}:{self.line}'


def snippets() -> list[Snippet]:
    """All Python blocks of all pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding='utf-8')
        for match in BLOCK.finditer(text):
            line = text.count('\n', 0, match.start(3)) + 1
            found.append(Snippet(page, line, match[1], match[2], match[3]))
    return found


def runnable(marker: str) -> list[Snippet]:
    return [snippet for snippet in snippets() if snippet.kind == 'run' and snippet.word == marker]


def run(snippet: Snippet, directory: Path) -> str:
    """Run a snippet as a script, beside the files that its page gives; what it printed."""
    for other in snippets():
        if other.page == snippet.page and other.kind == 'file' and other.word:
            (directory / other.word).write_text(other.code, encoding='utf-8')
    script = directory / 'snippet.py'
    script.write_text(snippet.code, encoding='utf-8')
    done = subprocess.run(
        [sys.executable, script.name], cwd=directory, timeout=PATIENCE_S, capture_output=True, text=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT)}
    )
    assert done.returncode == 0, f'{snippet.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}'
    return done.stdout


@pytest.mark.unittest
@pytest.mark.parametrize('snippet', runnable('unittest'), ids=lambda snippet: snippet.name)
def test_snippet_without_lightzero_runs(snippet: Snippet, tmp_path: Path) -> None:
    assert run(snippet, tmp_path).strip()


@pytest.mark.envtest
@pytest.mark.parametrize('snippet', runnable('envtest'), ids=lambda snippet: snippet.name)
def test_snippet_that_trains_runs(snippet: Snippet, tmp_path: Path) -> None:
    run(snippet, tmp_path)
    assert list(tmp_path.glob('*/async/report.json')), 'a run leaves a report'


@pytest.mark.unittest
def test_every_setting_of_the_examples_is_run() -> None:
    examples = ROOT / 'docs' / 'examples.md'
    assert len([snippet for snippet in runnable('envtest') if snippet.page == examples]) == 4
    assert len([snippet for snippet in runnable('unittest') if snippet.page == examples]) == 2
    assert [snippet for snippet in runnable('unittest') if snippet.page.name == 'architecture.md']


@pytest.mark.unittest
@pytest.mark.parametrize('snippet', snippets(), ids=lambda snippet: snippet.name)
def test_every_python_block_is_python(snippet: Snippet) -> None:
    compile(snippet.code, snippet.name, 'exec')
    assert snippet.kind in (None, 'file') or snippet.word in ('unittest', 'envtest')


@pytest.mark.unittest
def test_the_picture_is_drawn_from_its_metrics(tmp_path: Path) -> None:
    images = ROOT / 'docs' / 'images'
    drawn = tmp_path / 'schedule.svg'
    subprocess.run(
        [sys.executable, images / 'make_schedule.py', images / 'schedule.metrics.jsonl', drawn], check=True,
        timeout=PATIENCE_S
    )
    assert drawn.read_text(encoding='utf-8').rstrip().endswith('</svg>')


# ---------------------------------------------------------------------- links


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = re.sub(r'^```.*?^```$', '', page.read_text(encoding='utf-8'), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r'^#+ (.+)$', text, flags=re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', heading.lower()).strip().replace(' ', '-') for heading in headings}


@pytest.mark.unittest
@pytest.mark.parametrize('page', PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r'\]\(([^)\s]+)\)', page.read_text(encoding='utf-8')):
        if re.match(r'[a-z]+:', target):
            continue
        path, _, anchor = target.partition('#')
        file = (page.parent / unquote(path)).resolve() if path else page
        assert file.exists(), f'{page.name} links to {target}'
        assert not anchor or anchor in anchors(file), f'{page.name} links to {target}, which has no such heading'


@pytest.mark.unittest
def test_the_index_names_every_page() -> None:
    index = (ROOT / 'docs' / 'README.md').read_text(encoding='utf-8')
    for page in PAGES[2:]:
        assert page.name == 'README.md' or f']({page.name})' in index


# ---------------------------------------------------------------------- completeness


@pytest.mark.unittest
def test_configuration_names_every_setting() -> None:
    text = (ROOT / 'docs' / 'configuration.md').read_text(encoding='utf-8')
    names = [*(item.name for item in fields(AsyncConfig)), *UPSTREAM_NAMES]
    assert not [name for name in names if f'`{name}`' not in text]


def messages() -> list[str]:
    """Every string in the source, with NUL for each part that is filled in."""
    found = []
    for path in sorted((ROOT / 'lzero_async').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else '\0' for part in node.values)
                found.append(''.join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r'%[-.\d]*[a-z]', '\0', node.value))
    return found


@pytest.mark.unittest
def test_every_message_in_troubleshooting_occurs_in_the_source() -> None:
    text = (ROOT / 'docs' / 'troubleshooting.md').read_text(encoding='utf-8')
    ours = text.partition('## Messages of this package')[2]
    quoted = []
    for row in re.findall(r'^\| (`.*?) \|', ours, flags=re.MULTILINE):
        quoted += [quote for quote in re.findall(r'`([^`]+)`', row) if not quote.startswith('--- ')]
    assert len(quoted) > 40
    source = messages()
    for quote in quoted:
        pattern = re.compile('.*'.join(re.escape(part) for part in quote.split('…')), re.DOTALL)
        assert any(pattern.search(message) for message in source), f'no source says: {quote}'
