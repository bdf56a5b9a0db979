"""The engine: requests in, tokens and text out. The host works one step behind the device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from eagle3.config.request import RequestSampling
from eagle3.config.schema import ContextLimit, EngineConfig, SamplingConfig
from eagle3.engine.finish import FinishReason
from eagle3.engine.logprobs import Logprob
from eagle3.engine.request import Request, SamplingParams
from eagle3.engine.rescore import Rescore, rescore
from eagle3.engine.runner import Output, Runner
from eagle3.engine.scheduler import Emission, Plan, Scheduler
from eagle3.engine.stats import Acceptance, Metrics, SpecMetrics, metrics
from eagle3.errors import CapacityError, ConfigError, Eagle3Error, Problem
from eagle3.spec.adjust import MOST_STOPS
from eagle3.text.answer import AnswerText
from eagle3.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Result:
    """A request that has ended, without its prompt. `token_ids` holds what ended it, `text` does not."""

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str | None  # None: the checkpoint has no tokenizer
    finish_reason: FinishReason
    stopped_by: str | None  # the stop string that ended it
    logprobs: list[Logprob] | None  # of `token_ids`; None: not asked for
    metrics: Metrics | None
    sampling: SamplingParams | None  # None: refused before it had any
    seed: int
    error: str | None = None


@dataclass(frozen=True)
class Event:
    """What one step brought one request; `result` on its last event.

    Of a verification's tokens the first `accepted` were drafts; the bonus comes last, unless the answer ended before.
    """

    request_id: str
    token_ids: list[int]
    pieces: list[str]  # for each token the text that it made certain
    accepted: int | None  # None: nothing was verified (a prompt's token, plain decoding)
    result: Result | None

    @property
    def text(self) -> str:
        """The text that is new; empty without a tokenizer."""
        return "".join(self.pieces)


Prompt = str | Sequence[int]


class Engine:
    """Serves requests until none is left; see `generate`, `stream`, or `add` and `step`."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        scheduler: Scheduler,
        tokenizer: Tokenizer | None,
        vocab: int,
        end_ids: frozenset[int],
    ) -> None:
        self.config = config
        self.runner = runner
        self.scheduler = scheduler
        self.tokenizer = tokenizer
        self.vocab = vocab
        self.end_ids = end_ids
        self._acceptance = Acceptance(
            scheduler.shape,
            valid=config.spec.synthetic_acceptance is None,
            judged=config.draft.context_limit is not ContextLimit.stop_drafting,
        )
        self._pending: tuple[Plan, Output] | None = None
        self._requests: dict[str, Request] = {}
        self._added = 0
        self._sampling = RequestSampling(config)
        self._failed = False  # a step was begun and did not end

    def add(self, prompt: Prompt, *, request_id: str | None = None, **sampling: Any) -> str:  # noqa: ANN401
        """Queue a prompt (text, or token ids) and return the request's id.

        `sampling` replaces single fields of the configuration's. Raises `ConfigError` for bad values and
        `CapacityError` for a request that can never fit; the engine goes on.
        """
        config = self.sampling(sampling)
        tokens = self._tokens(prompt)
        self.check_prompt(tokens)
        params = SamplingParams.resolve(config, self.end_ids)
        if request_id is None:
            request_id = next(name for name in map(str, count(self._added)) if name not in self._requests)
        if request_id in self._requests:
            raise Eagle3Error(f"request id {request_id!r} is in use")
        limit = min(params.max_new_tokens, self.scheduler.limits.max_seq_len - len(tokens))
        text = AnswerText(self.tokenizer, params.stop) if self.tokenizer else None
        request = Request(request_id, tokens, params, prompt_len=len(tokens), limit=limit, text=text)
        self.scheduler.add(request)
        self._added += 1
        self._requests[request_id] = request
        return request_id

    def sampling(self, values: Mapping[str, Any]) -> SamplingConfig:
        """The configuration's sampling with `values` in place of some fields. Raises `ConfigError` for bad ones."""
        config = self._sampling(values)
        if config.stop and self.tokenizer is None:
            raise ConfigError([Problem("stop", "wants a tokenizer, which this checkpoint has not", config.stop)])
        if config.min_new_tokens and len(SamplingParams.resolve(config, self.end_ids).ends) > MOST_STOPS:
            message = f"goes with {MOST_STOPS} stop ids at most, the model's own included"
            raise ConfigError([Problem("min_new_tokens", message, config.min_new_tokens)])
        return config

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Raise `ConfigError` for a prompt that is empty or holds what is no token id."""
        if not tokens:
            raise ConfigError([Problem("prompt", "wants at least one token", list(tokens))])
        if bad := [t for t in tokens if not 0 <= t < self.vocab]:
            raise ConfigError([Problem("prompt", f"wants token ids in [0, {self.vocab}), got {bad[:5]}", bad)])

    def step(self) -> list[Event]:
        """Hand the next step to the device and report the one before it."""
        if self._failed:
            raise Eagle3Error("a step failed before its end: abort the requests that are left, see abort_all")
        plan = self.scheduler.schedule()
        self._failed = True
        output = self.runner.run(plan) if plan else None
        self._failed = False
        emissions = self._commit()
        self._pending = (plan, output) if output else None
        return [self._event(e) for e in emissions]

    def abort(self, request_id: str) -> Result:
        """End a request now, with what it has; its step in flight is ignored."""
        if request_id not in self._requests:
            raise Eagle3Error(f"no request {request_id!r} is running or waiting")
        request = self._requests[request_id]
        self.scheduler.finish(request, "abort")
        result = self._leave(request)
        if not self._requests:  # all that is in flight is nobody's
            self._pending, self._failed = None, False
        return result

    def abort_all(self) -> list[Result]:
        """End all requests now, with what they have."""
        return [self.abort(request_id) for request_id in list(self._requests)]

    @property
    def idle(self) -> bool:
        """No request is left."""
        return not self._requests and self._pending is None

    def stream(
        self, prompts: Sequence[Prompt], samplings: Sequence[Mapping[str, Any]] | None = None
    ) -> Iterator[Event]:
        """Serve all prompts together and yield what each step brings; request i has the id str(i).

        `samplings[i]` replaces fields of the configuration's sampling for prompt i; one without a seed of its own gets
        the configuration's plus i. A prompt that can never fit yields one event, whose result has the finish reason
        "error". Leaving the loop early aborts what is left. Wants an idle engine: to mix with requests of your own, use
        `add` and `step`.
        """
        if not self.idle:
            raise Eagle3Error("stream and generate want an idle engine: finish what is left, or call abort_all()")
        if isinstance(prompts, str) or (samplings is not None and len(samplings) != len(prompts)):
            raise Eagle3Error("stream and generate want a list of prompts, and as many samplings if any")
        ids: list[str] = []
        try:
            for i, prompt in enumerate(prompts):
                own = {"seed": (self.config.sampling.seed + i) % 2**63, **(samplings[i] if samplings else {})}
                try:
                    ids.append(self.add(prompt, request_id=str(i), **own))
                except CapacityError as error:
                    yield self._refused(str(i), prompt, own["seed"], error)
            while not self.idle:
                yield from self.step()
        except (Eagle3Error, GeneratorExit):
            for request_id in ids:
                if request_id in self._requests:
                    self.abort(request_id)
            raise

    def generate(self, prompts: Sequence[Prompt], samplings: Sequence[Mapping[str, Any]] | None = None) -> list[Result]:
        """Serve all prompts together, as `stream`; results in the order of the prompts."""
        results = {e.request_id: e.result for e in self.stream(prompts, samplings) if e.result}
        return [results[str(i)] for i in range(len(prompts))]

    def stats(self) -> SpecMetrics | None:
        """Drafting so far, all requests together; None with plain decoding."""
        return self._acceptance.total()

    def rescore(self, result: Result) -> Rescore:
        """Hold a result against the target alone: is each of its tokens what the target says after those before it?

        Wants an idle engine, whose pages it borrows, and a result of this engine that was not refused.
        """
        if not self.idle:
            raise Eagle3Error("rescore wants an idle engine: finish or abort the requests added before")
        if result.sampling is None:
            raise Eagle3Error(f"request {result.request_id} was refused: it has no answer to rescore")
        tokens = [*result.prompt_token_ids, *result.token_ids]
        prompt_len, limit = len(result.prompt_token_ids), len(result.token_ids)
        request = Request(result.request_id, tokens, result.sampling, prompt_len, limit)
        return rescore(request, self.runner, self.scheduler)

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise Eagle3Error("this checkpoint has no tokenizer: give prompts as token ids")
            tokens = self.tokenizer.encode(prompt)
        else:
            tokens = list(prompt)
        return tokens

    def _commit(self) -> list[Emission]:
        """Read the pending step: the only place where tensors become lists."""
        if self._pending is None:
            return []
        plan, out = self._pending
        return self.scheduler.commit(plan, *out.lists(), out.told())

    def _event(self, emission: Emission) -> Event:
        request = emission.request
        if emission.accepted is not None:
            self._acceptance.count(emission.accepted)
        pieces = [""] * len(emission.tokens)
        if request.text is not None:
            taken = request.text.take()
            pieces[: len(taken)] = taken  # an end token has no text
            if request.finish_reason:
                pieces[-1] += request.text.finish()
        result = self._leave(request) if request.finish_reason else None
        return Event(request.id, emission.tokens, pieces, emission.accepted, result)

    def _leave(self, request: Request) -> Result:
        del self._requests[request.id]
        assert request.finish_reason is not None
        return Result(
            request.id,
            request.tokens[: request.prompt_len],
            request.output,
            self._text(request),
            request.finish_reason,
            request.text.stopped_by if request.text else None,
            None if request.sampling.logprobs is None else request.logprobs,
            metrics(request, self._acceptance),
            request.sampling,
            request.sampling.seed,
        )

    def _text(self, request: Request) -> str | None:
        if self.tokenizer is None or request.text is None:
            return None
        if request.text.stopped_by is not None:
            return request.text.shown
        return self.tokenizer.decode([t for t in request.output if t not in request.sampling.ends])

    def _refused(self, request_id: str, prompt: Prompt, seed: int, error: Eagle3Error) -> Event:
        ids = [] if isinstance(prompt, str) else list(prompt)
        result = Result(request_id, ids, [], None, "error", None, None, None, None, seed, str(error))
        return Event(request_id, [], [], None, result)
