"""The package as a newcomer meets it: light import, documented names, a README whose example is true."""

import doctest
import re
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import pytest

import toktier

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_import_loads_nothing_heavy():
    loaded = python("import sys, toktier; print(*sys.modules)")
    assert not {"jax", "jaxlib", "tokenizers", "tiktoken", "regex", "transformers", "huggingface_hub"} & set(loaded)


def test_help_loads_neither_jax_nor_the_references():
    code = "import sys; from toktier import cli; cli.run(['encode', '--help']); print('modules', *sys.modules)"
    loaded = python(code)
    assert not {"jax", "tokenizers", "tiktoken"} & set(loaded[loaded.index("modules") :])


def test_optional_packages_stay_optional():
    """The main job works where no extra is installed (here: where importing one fails)."""
    code = """
import sys
for name in ("huggingface_hub", "transformers", "matplotlib", "pytest", "hypothesis", "fastokens", "gigatoken"):
    sys.modules[name] = None
import toktier
print(*toktier.load("cl100k_base").encode("a b"))
"""
    assert python(code) == ["64", "293"]


@pytest.mark.parametrize("name", toktier.__all__)
def test_public_names_exist_and_are_documented(name):
    value = getattr(toktier, name)
    assert isinstance(value, str) or value.__doc__


def test_version_and_typing_marker():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == toktier.__version__
    assert resources.files("toktier").joinpath("py.typed").is_file()


def test_readme_example_is_what_happens():
    result = doctest.testfile(str(ROOT / "README.md"), module_relative=False, encoding="utf-8")
    assert result.attempted >= 5
    assert result.failed == 0


def test_readme_has_the_two_commands():
    """One block to run the main job, one to run the tests; .ci/run evaluates the second as it stands."""
    blocks = re.findall(r"<!-- (\w+) command -->\n+```sh\n(.*?)\n```", README, re.S)
    assert [name for name, _ in blocks] == ["run", "test"]
    assert all(len(body.splitlines()) == 1 for _, body in blocks)
    assert "<!-- test command -->" in (ROOT / ".ci" / "run").read_text()


def test_readme_shows_what_inspect_prints():
    shown = re.search(r"<!-- toktier inspect (\S+) -->\n```text\n(.*?)\n```", README, re.S)
    command = [sys.executable, "-m", "toktier", "inspect", shown[1]]  # in a process that encoded nothing yet
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in printed if not line.startswith("  digest")] == shown[2].splitlines()


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_readme_run_command_works_on_the_readme(capfd):
    """It encodes this very file, which therefore must hold no special token."""
    from toktier import cli

    assert cli.run(["encode", str(ROOT / "README.md")]) == 0
    ids = [int(word) for word in capfd.readouterr().out.split()]
    assert toktier.load("o200k_base").decode(ids) == README
