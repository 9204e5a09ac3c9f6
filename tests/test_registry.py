import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

import semfocus
from semfocus import diagnostics, patterns, studies, tasks
from semfocus.lab.study import Study
from semfocus.registry import snake_case, suggestion


@pytest.mark.parametrize(
    "registry", [patterns.registry, tasks.registry, studies.registry, diagnostics.registry], ids=lambda r: r.noun
)
def test_the_file_s_stem_is_the_name(registry):
    for name in registry.own_names():
        cls = registry.find(name)
        assert cls.__module__.rpartition(".")[2] == name
        assert cls.__name__.lower() == name.replace("_", "")


def test_every_pattern_of_ours_is_at_the_top_of_the_package():
    classes = {patterns.find(name) for name in patterns.registry.own_names()}
    assert classes <= {getattr(semfocus, name) for name in semfocus.__all__}


def test_suggestions():
    assert suggestion("topk", ["top_k", "full"]) == "did you mean 'top_k'?"
    assert suggestion("zzz", ["b", "a"]) == "choose one of a, b"
    assert suggestion("zzz", []) == "there is none"
    assert snake_case("SwappedTopK") == "swapped_top_k"


def test_a_user_s_pattern_works_like_ours():
    @semfocus.register
    @dataclass(frozen=True)
    class EvenKeys(semfocus.Pattern):
        """Keys at even positions."""

        input_dependent = False

        def keep(self, q, k, visible):
            return torch.arange(k.shape[-2]) % 2 == 0

    try:
        assert "even_keys" in patterns.names()
        q, k, v = torch.randn(3, 1, 1, 6, 4)
        _, weights = semfocus.attention(q, k, v, patterns.get("even_keys"), return_weights=True)
        assert (weights[..., 1::2] == 0).all()
        assert (weights[..., 0::2] > 0).all()
    finally:
        patterns.registry._added.pop("even_keys")


def test_registration_mistakes_are_named():
    with pytest.raises(ValueError, match=r"derived from semfocus\.Pattern"):
        semfocus.register(int)
    with pytest.raises(ValueError, match="input_dependent"):

        @semfocus.register
        @dataclass(frozen=True)
        class Undeclared(semfocus.Pattern):
            def keep(self, q, k, visible):
                return visible

    with pytest.raises(TypeError, match="must define keep"):

        class Nothing(semfocus.Pattern):
            pass

    with pytest.raises(ValueError, match="'top_k' exists already"):

        @semfocus.register
        @dataclass(frozen=True)
        class TopK(semfocus.Pattern):
            input_dependent = True

            def keep(self, q, k, visible):
                return visible


def test_importing_the_package_does_not_import_torch():
    code = "import sys, semfocus; assert 'torch' not in sys.modules; assert semfocus.TopK(5).k == 5"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_core_needs_torch_and_numpy_alone():
    code = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'cattrs', 'rich', 'safetensors', 'scipy', 'matplotlib', 'jinja2', 'transformers'}:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Blocked())
import semfocus, semfocus.contract
for name in dir(semfocus):
    getattr(semfocus, name)
for room in (semfocus.patterns, semfocus.tasks):
    for name in room.names():
        room.registry.find(name)
for call in (lambda: semfocus.load_run('x'), lambda: semfocus.training.Trainer):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    install = "pip install 'semfocus[lab]'"
    assert done.stdout == f"load_run needs safetensors: {install}\nTrainer needs safetensors: {install}\n"


PLUGIN = """
from dataclasses import dataclass
import semfocus

def which(visible):
    return visible

@semfocus.register
@dataclass(frozen=True)
class Edited(semfocus.Pattern):
    input_dependent = False

    def select(self, view):
        return which(view.visible)
"""
NAME = """
import sys
from pathlib import Path
from semfocus import patterns, plugins
from semfocus.training import paper
plugins.load(Path(sys.argv[1]))
print(paper("even_pairs", patterns.get("edited"), 0).hash, paper("even_pairs", patterns.get("top_k", k=5), 0).hash)
"""


def test_an_edited_plugin_makes_other_runs(tmp_path):
    def names(text):
        (tmp_path / "mine.py").write_text(text)
        done = subprocess.run([sys.executable, "-c", NAME, tmp_path / "mine.py"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, ours = names(PLUGIN)
    edited, same = names(PLUGIN.replace("return visible\n", "return visible.clone()\n", 1))
    assert edited != first
    assert same == ours


def test_what_is_not_whole_is_refused_by_name(monkeypatch):
    class Half(Study):
        """Nothing but a question?"""

    monkeypatch.setitem(studies.registry._added, "half", Half)
    with pytest.raises(ValueError, match="study 'half' does not define claims, runs"):
        studies.get("half")
