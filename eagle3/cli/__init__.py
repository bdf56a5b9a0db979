"""The command line: one file a command; heavy imports wait inside the commands."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from eagle3.cli import benchmark, check, convert, data, env, generate, plot, pull, show, support, train, tree, warmup
from eagle3.cli import list as list_
from eagle3.cli.report import print_error
from eagle3.errors import Eagle3Error, RunError

app = typer.Typer(
    name="eagle3",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eagle3 {env.version_of('eagle3')}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """EAGLE-3 speculative decoding from one Hydra YAML.

    Overrides configure it: conf=ENGINE is a whole engine, spec=chain a part, kv.tokens_per_block=16 a value.

    `eagle3 list` shows what there is, `eagle3 check` tells what is wrong, COMMAND --help has examples.
    """


app.command("generate")(generate.generate)
app.command("tree")(tree.tree)
app.command("benchmark")(benchmark.benchmark)
app.command("plot")(plot.plot)
app.command("data")(data.data)
app.command("train")(train.train)
app.command("warmup")(warmup.warmup)
app.command("check")(check.check)
app.command("show")(show.show)
app.command("list")(list_.list_)
app.command("pull")(pull.pull)
app.command("convert")(convert.convert)
app.command("support")(support.support)
app.command("env")(env.env)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 done, 1 a run failed, 2 usage or configuration, 130 interrupted.

    HYDRA_FULL_ERROR=1 shows the trace of errors that are otherwise told in one block.
    """
    try:
        app(args=None if argv is None else [*argv], prog_name="eagle3")
    except Eagle3Error as error:
        if os.environ.get("HYDRA_FULL_ERROR", "0") != "0":
            raise
        print_error(error)
        return 1 if isinstance(error, RunError) else 2
    except SystemExit as exit_:
        if _interrupted(exit_.__context__):
            return 130
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except KeyboardInterrupt:
        return 130
    return 0


def _interrupted(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False
