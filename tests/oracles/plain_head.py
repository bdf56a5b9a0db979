"""The head once more, row by row over public tensors, in float64."""

from collections.abc import Collection

import torch
from torch import Tensor

from eagle3.models.head_facts import Lender

EPS = 1e-5


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turn(x: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of one head [hd] at one position: the pair (i, i + hd / 2) as a complex number."""
    half = len(x) // 2
    frequency = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) / half)  # float32 wherever heads are trained
    angle = position * frequency.double()
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones(half, dtype=torch.float64), angle)
    return torch.cat([turned.real, turned.imag])


class Plain:
    """A head over one sequence, without a cache: every row, head and key in a loop.

    What it computes beyond the plain head follows from its tensors, but for the names in `more`:
    norm_before_residual, normed_twice, norm_output.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        lender: Lender,
        heads: int,
        kv_heads: int,
        theta: float,
        more: Collection[str] = (),
    ) -> None:
        self.more = frozenset(more)
        self.w = {name.replace("midlayer", "layers.0"): value.double() for name, value in tensors.items()}
        self.heads, self.kv_heads, self.theta = heads, kv_heads, theta
        self.embed = self.w.get("embed_tokens.weight", lender.embed.weight.detach())
        assert lender.lm_head is not None
        self.lm_head = self.w.get("lm_head.weight", lender.lm_head.weight.detach())
        self.layers = len({name.split(".")[1] for name in self.w if name.startswith("layers.")})

    def fuse(self, captured: Tensor) -> Tensor:
        """captured [T, C·Ht] -> features [T, H]."""
        if "input_norm.weight" in self.w:
            captured = norm(captured, self.w["input_norm.weight"])
        if "fc_norm.0.weight" in self.w:
            low, mid, high = captured.chunk(3, dim=1)
            low, mid, high = (norm(x, self.w[f"fc_norm.{i}.weight"]) for i, x in enumerate((low, mid, high)))
            captured = torch.cat([low, mid, high], dim=1)
        if "fc.weight" not in self.w:
            return captured
        return captured @ self.w["fc.weight"].T + self.w.get("fc.bias", 0)

    def __call__(self, ids: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """ids [T], features [T, H] from position 0 on -> logits [T, Vd], feedback [T, H]."""
        g = features
        e = self.embed[ids]
        if "eh_proj.weight" in self.w:
            both = torch.cat([norm(e, self.w["enorm.weight"]), g], dim=1)
            g = both @ self.w["eh_proj.weight"].T + self.w.get("eh_proj.bias", 0)
        for i in range(self.layers):
            name = f"layers.{i}."
            read, inner = g, self.w.get(name + "input_layernorm.weight")
            if "normed_twice" in self.more and i == 0:
                read = norm(read, inner)
            u = norm(read, self.w[name + "hidden_norm.weight"])
            residual = u if "norm_before_residual" in self.more and i == 0 else g
            if inner is not None:
                u = torch.cat([norm(e, inner), u], dim=1)
            a = residual + self.attend(u, name + "self_attn.")
            m = norm(a, self.w[name + "post_attention_layernorm.weight"])
            gate, up = (m @ self.w[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            g = a + (gate * torch.sigmoid(gate) * up) @ self.w[name + "mlp.down_proj.weight"].T
        normed = norm(g, self.w["norm.weight"])
        return normed @ self.lm_head.T, normed if "norm_output" in self.more else g

    def attend(self, u: Tensor, name: str) -> Tensor:
        q, k, v = (u @ self.w[f"{name}{part}_proj.weight"].T for part in "qkv")
        q = q.view(len(u), self.heads, -1)
        k, v = (x.view(len(u), self.kv_heads, -1) for x in (k, v))
        if name + "q_norm.weight" in self.w:
            q, k = norm(q, self.w[name + "q_norm.weight"]), norm(k, self.w[name + "k_norm.weight"])
        out = torch.zeros_like(q)
        for t in range(len(u)):
            for h in range(self.heads):
                one = h // (self.heads // self.kv_heads)
                keys = torch.stack([turn(k[s, one], s, self.theta) for s in range(t + 1)])
                scores = keys @ turn(q[t, h], t, self.theta) / q.shape[2] ** 0.5
                out[t, h] = scores.softmax(0) @ v[: t + 1, one]
        return out.flatten(1) @ self.w[name + "o_proj.weight"].T
