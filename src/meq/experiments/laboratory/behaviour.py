"""What a trained equilibrium does: along its iteration, under corruption, and where it looks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meq.experiments.arms import EQUILIBRIUM, baseline, equilibrium
from meq.experiments.settings import Setting
from meq.experiments.study import ArmConfig, Study, StudyError

DEEP = ("existence", "binding", "relation")
DEEP_SIZES = {"train": 10800, "dev": 1350, "test": 1350}
"""As many statements of each kind as the set has otherwise, and by fewer epochs as many updates."""


def steps(setting: Setting) -> Study:
    """Where does the answer come from? The trained equilibrium read at every step, up to twice its read depth.

    Command: meq study run steps scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: a steep rise over the first exchanges, then a plateau.
    """
    return _watched(setting, "steps", "At which step is the answer there?", {"steps": _by_kind(setting)})


def fixed_point(setting: Setting) -> Study:
    """Is what is read a fixed point? Spectral radius, drift, residual and score at K, and after 300 steps.

    Command: meq study run fixed-point scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: a radius near one, and scores that hold or fall when the iteration goes on.
    """
    return _watched(setting, "fixed-point", "Is what is read a fixed point?", {"fixed-point": {}})


def hops(setting: Setting) -> Study:
    """When does iteration help? Statements of growing depth, read at every step; and the same model of one step only.

    On `scenes`: existence is one hop, binding two, a relation three.

    Command: meq study run hops scenes --quick
    Duration: about an hour on two cores in quick form.
    Expect: more steps until the answer is there for deeper statements.
    """
    options = {**DEEP_SIZES, **setting.data.options, "kinds": list(DEEP)}
    data, train = replace(setting.data, options=options), replace(setting.train, epochs=2 * setting.train.epochs // 3)
    deep = replace(setting, data=data, train=train, kinds=DEEP)
    one_step = equilibrium(deep, "one-step", steps=1)
    arms = (equilibrium(deep), one_step, baseline(deep, "self-attention"))
    return _watched(deep, "hops", "Does a deeper statement need more steps?", {"steps": {"by": "kind"}}, arms=arms)


def robustness(setting: Setting) -> Study:
    """How far do noise, blur and typos bring the answers down? Five draws, the same for every checkpoint.

    Command: meq study run robustness scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: scores that fall with the strength of the corruption, for both arms.
    """
    arms = (baseline(setting, "concat"), equilibrium(setting))
    draws = 2 if setting.quick else 5
    return _watched(
        setting,
        "robustness",
        "Who stands corruption better?",
        {"robustness": {"draws": draws}},
        arms=arms,
        reference="concat",
    )


def grounding(setting: Setting) -> Study:
    """Does the model find what hides? Trained on entailment, read where masks show what the statement speaks of.

    After SNLI-VE it is COD10K that is read, with its folder given beside; `scenes` has masks of its own.

    Command: meq study run grounding scenes --quick
    Duration: about twenty minutes on two cores in quick form.
    Expect: maps that depend on the method more than on the step: see the log.
    """
    read = None if setting.data.name == "scenes" else "cod10k"
    if read is not None and setting.data.name != "snli-ve":
        raise StudyError(f"grounding is trained on an entailment set, and {setting.data.name!r} is none")
    options: dict[str, Any] = {**({} if read is None else {"read": read}), **({"limit": 100} if setting.quick else {})}
    return _watched(setting, "grounding", "Does the iteration find what hides?", {"grounding": options})


def _watched(
    setting: Setting,
    name: str,
    question: str,
    measures: dict[str, dict[str, Any]],
    *,
    arms: tuple[ArmConfig, ...] = (),
    reference: str = EQUILIBRIUM,
) -> Study:
    return Study(
        name=name,
        question=question,
        data=setting.data,
        arms=arms or (equilibrium(setting),),
        seeds=setting.seeds,
        reference=reference,
        train=setting.train,
        measures=measures,
    )


def _by_kind(setting: Setting) -> dict[str, Any]:
    return {"by": "kind"} if setting.kinds else {}
