"""MutualEquilibrium: coupled states on a complete graph, each reading all the others until they agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meq.core.backward import Backward, Unrolled
from meq.core.iteration import TOLERANCE
from meq.core.options import checked_options, switch
from meq.core.solvers import Solver
from meq.models.base import check_names
from meq.models.coupling import Coupling
from meq.models.iterated import Iterated
from meq.models.sides import Design, Parts


@checked_options
class MutualEquilibrium(Iterated):
    """Two or more modalities whose states update each other: z_a <- F_a(x_a, z_a, z_others).

    The defaults are the paper's.
    """

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        heads: int = 8,
        steps: int = 10,
        tol: float = TOLERANCE,
        solver: Solver | None = None,
        backward: Backward = Unrolled(),
        mixer: str = "attention",
        max_tokens: Mapping[str, int] | None = None,
        hidden: int | None = None,
        gate: bool = True,
        gate_floor: float = 0.0,
        cross: bool = True,
        own: bool = True,
        damping: float | str = 0.5,
        start: str = "injection",
        dropout: float = 0.0,
        modality_dropout: float = 0.0,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        parts: Mapping[str, Parts] | None = None,
    ) -> None:
        """`widths`: feature width per modality. `mixer`: attention, gmlp (needs `max_tokens`) or mlp (vectors).

        `hidden` is the feed-forwards' width, 4 `dim` unless given. `cross=False`, `own=False`, `gate=False` switch the
        parts M, S and the soft gate off. `parts` replaces S, M or f of a modality by modules of your own. `solver`, the
        damped iteration unless given, `backward`, `steps` and `tol` say how it is run, and can be set again later.
        """
        check_names(widths)
        if len(widths) < 2:
            raise ValueError(f"a mutual equilibrium needs at least two modalities, got {list(widths)}")
        super().__init__(
            widths,
            classes,
            dim,
            steps=steps,
            tol=tol,
            solver=solver,
            backward=backward,
            damping=damping,
            readout=readout,
            heads=heads,
            head=head,
            head_width=head_width,
            modality_dropout=modality_dropout,
        )
        self.custom = parts is not None
        design = Design(
            dim=dim,
            heads=heads,
            hidden=4 * dim if hidden is None else hidden,
            mixer=mixer,
            max_tokens=max_tokens,
            gate_floor=gate_floor if switch("gate", gate) else None,
            cross=cross,
            own=own,
            start=start,
            dropout=dropout,
        )
        self.coupling = Coupling(widths, design, parts)

    def to_config(self) -> dict[str, Any]:
        if self.custom:
            raise ValueError("a model with parts of your own cannot be saved by name: save its state_dict instead")
        return super().to_config()
