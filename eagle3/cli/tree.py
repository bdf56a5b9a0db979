"""`eagle3 tree`: one step's tree of guesses, and the path through it that the target took."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from eagle3.cli.options import Chat, Ids, Json, Texts, no_multirun, takes_overrides
from eagle3.config.flags import HydraFlags
from eagle3.errors import ConfigError, RunError, UnsupportedError

if TYPE_CHECKING:
    from rich.tree import Tree

    from eagle3.engine.engine import Engine
    from eagle3.spec.watch import Verification


@dataclass(frozen=True)
class Node:
    """A guess; node 0 is the root, the last token before the step."""

    node: int
    parent: int | None
    depth: int
    token: int
    text: str | None  # None: no tokenizer
    score: float | None  # log-probability of the path from the root, as the head sees it; None: not known
    accepted: bool


@dataclass(frozen=True)
class Picture:
    """A verified tree."""

    step: int
    nodes: list[Node]
    bonus: int
    bonus_text: str | None

    @classmethod
    def of(cls, step: int, seen: "Verification", engine: "Engine") -> "Picture":
        """From the only request of a verification."""
        tokens, depth, _, first_child, next_sibling = (t[0].tolist() for t in seen.tree.tensors())
        scores: list[float | None] = [None] * len(tokens)
        if seen.scores is not None:
            scores[1:] = seen.scores[0].tolist()
        path = {0, *seen.accepted.nodes[0].tolist()}
        parents = _parents(first_child, next_sibling)
        nodes = [
            Node(i, parents[i], depth[i], token, _text(engine, token), scores[i], i in path)
            for i, token in enumerate(tokens)
        ]
        bonus = int(seen.accepted.tokens[0, seen.accepted.counts[0] - 1])
        return cls(step, nodes, bonus, _text(engine, bonus))


@takes_overrides
def tree(
    flags: HydraFlags,
    overrides: list[str],
    prompt: Texts = None,
    prompt_ids: Ids = None,
    chat: Chat = None,
    step: Annotated[int, typer.Option("--step", min=1, help="Which verification to show.")] = 1,
    json_: Json = False,
) -> int:
    """Show the tree of guesses of one step: scores, the path that the target took, and its bonus token.

    A score is the head's log-probability of the path from the root.

    Examples:

      eagle3 tree conf=llama8b --prompt "What is the capital of France?"

      eagle3 tree conf=mine spec=tree spec.max_total_draft_tokens=16 --prompt-ids 1,2,3 --step 4 --json
    """
    from eagle3.cli.prompts import given_prompts
    from eagle3.cli.report import loading, print_problems
    from eagle3.config import load
    from eagle3.config.terminal import console

    no_multirun(flags)
    if load.show(flags, overrides):
        return 0
    prompts = given_prompts(prompt, None, prompt_ids)
    if len(prompts) > 1:
        raise typer.BadParameter("one prompt at a time")
    composed = load.compose(overrides, config_dir=flags.config_dir, config_name=flags.config_name)
    print_problems(composed.warnings, "yellow")
    if composed.shape.depth == 0:
        raise UnsupportedError("plain decoding (spec=none) guesses nothing: choose spec=tree and a head, draft=…")

    from eagle3.build.engine import build_engine
    from eagle3.cli.prompts import encoded, faults_before

    if problems := faults_before(composed, prompts):
        raise ConfigError([composed.placed(problem) for problem in problems])
    with loading("weights") as progress:
        engine = build_engine(composed, progress)
    picture = watched(engine, encoded(engine, prompts, chat)[0], step)
    if json_:
        typer.echo(json.dumps(asdict(picture), ensure_ascii=False))
    else:
        console(stderr=False).print(drawn(picture))
    return 0


def watched(engine: "Engine", prompt: Sequence[int], step: int) -> Picture:
    """Run a prompt up to its `step`-th verification. Raises `RunError` if it ends before."""
    from eagle3.engine.runner import Runner
    from eagle3.spec.watch import Watch

    watch, done = Watch(), 0
    engine.runner = Runner(watch.on(engine.runner.worker), engine.runner.preparer)
    for event in engine.stream([prompt]):
        if event.result is not None and event.result.error is not None:
            raise RunError(event.result.error)
        done += event.accepted is not None
        if done == step:
            return Picture.of(step, watch.seen[step - 1], engine)
    raise RunError(f"the answer ended after {done} steps, before step {step}: raise sampling.max_new_tokens")


def drawn(picture: Picture) -> "Tree":
    """For a terminal: the accepted path bold and green, the bonus below its end."""
    from rich.text import Text
    from rich.tree import Tree

    root = picture.nodes[0]
    branches = [Tree(Text(_shown(root.token, root.text), style="bold"))]
    for node in picture.nodes[1:]:
        assert node.parent is not None
        score = "" if node.score is None else f"  {node.score:.2f}"
        mark = "  ✓" if node.accepted else ""
        label = Text(_shown(node.token, node.text), style="bold green" if node.accepted else "")
        label.append(f"{score}  depth {node.depth}{mark}", style="not bold" if node.accepted else "dim")
        branches.append(branches[node.parent].add(label))
    end = max((node for node in picture.nodes if node.accepted), key=lambda node: node.depth)
    bonus = Text(_shown(picture.bonus, picture.bonus_text), style="bold yellow")
    branches[end.node].add(bonus.append("  bonus", style="not bold"))
    return branches[0]


def _parents(first_child: Sequence[int], next_sibling: Sequence[int]) -> list[int | None]:
    """Each node's parent, from the links; a parent stands before its children."""
    parents: list[int | None] = [None] * len(first_child)
    for node, child in enumerate(first_child):
        while child >= 0:
            parents[child] = node
            child = next_sibling[child]
    return parents


def _text(engine: "Engine", token: int) -> str | None:
    return engine.tokenizer.decode([token], skip_special_tokens=False) if engine.tokenizer else None


def _shown(token: int, text: str | None) -> str:
    return str(token) if text is None else repr(text)
