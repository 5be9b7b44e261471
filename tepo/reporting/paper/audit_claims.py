"""Claims that the text of the TEPO paper makes about its tables, and fixed findings about them, as data. Section
numbers are those of arXiv 2604.12736. A test recomputes every number of SIZES and STATEMENTS from the tables."""

from dataclasses import dataclass

from tepo.reporting.paper.reference import PAPER_BENCHMARKS

_ALL = tuple(PAPER_BENCHMARKS)
SHORT = {
    "DeepSeek-R1-Distill-Llama-8B": "DS-Llama-8B",
    "Mistral-7B-Instruct-v0.2": "Mistral-7B",
    "DeepSeek-R1-Distill-Qwen-7B": "DS-Qwen-7B",
}
"""Model names short enough for a line; others stay as they are."""

_7B, _14B = "Qwen2.5-7B", "Qwen3-14B"
_LLAMA, _MISTRAL, _QWEN = "DeepSeek-R1-Distill-Llama-8B", "Mistral-7B-Instruct-v0.2", "DeepSeek-R1-Distill-Qwen-7B"


@dataclass(frozen=True)
class Finding:
    """A printed statement that does not follow. printed: what the paper says. recomputed: what its columns give."""

    code: str
    where: str
    printed: str
    recomputed: str


@dataclass(frozen=True)
class GainClaim:
    """points: Avg. of `method` minus Avg. of `against`, as the text gives it."""

    where: str
    says: str
    table: str
    model: str
    method: str
    against: str
    points: float
    code: str = "A16"


@dataclass(frozen=True)
class RankClaim:
    """`method` is within the first `rank` rows of its model on each of these benchmarks."""

    where: str
    table: str
    model: str
    benchmarks: tuple[str, ...]
    rank: int
    method: str = "tepo"


GAINS = (
    GainClaim("§4.2", "Qwen2.5-7B, TEPO over GRPO/DAPO", "table1", _7B, "tepo", "grpo_dapo", 1.74),
    GainClaim("§4.2", "Qwen2.5-7B, TEPO over GPG", "table1", _7B, "tepo", "gpg", 0.68),
    GainClaim("§4.2", "Qwen3-14B, TEPO over GRPO/DAPO", "table1", _14B, "tepo", "grpo_dapo", 2.51),
    GainClaim("§4.2", "Qwen3-14B, TEPO over GSPO", "table1", _14B, "tepo", "gspo", 1.74),
    GainClaim("§4.2", "DS-Llama-8B, TEPO over GRPO/DAPO", "table2", _LLAMA, "tepo", "grpo_dapo", 0.53),
    GainClaim("§4.2", "Mistral-7B, TEPO over GRPO/DAPO", "table2", _MISTRAL, "tepo", "grpo_dapo", 0.28),
    GainClaim("§4.2", "DS-Qwen-7B, TEPO over GRPO/DAPO", "table2", _QWEN, "tepo", "grpo_dapo", 2.61),
    GainClaim("§4.3", "β = 0.1 against TEPO-w/o. KL", "table3", _7B, "tepo_kl_all_beta_0.1", "tepo_no_kl", -4.6, "A14"),
    GainClaim("§4.3", "Max-Entropy against TEPO-w/o. KL", "table3", _7B, "tepo_max_entropy", "tepo_no_kl", -0.56),
    GainClaim("§4.3", "Min-Entropy against TEPO-w/o. KL", "table3", _7B, "tepo_min_entropy", "tepo_no_kl", -1.53),
)

RANKS = (
    RankClaim("§4.2", "table1", _7B, ("math500", "omni_math", "amc", "aime25", "olympiadbench"), 1),
    RankClaim("§4.2", "table1", _7B, ("aime24", "minerva"), 3),
    RankClaim("§4.2", "table1", _14B, _ALL, 1),
    RankClaim("§4.2", "table2", _LLAMA, ("aime25", "math500", "omni_math", "olympiadbench", "minerva"), 1),
    RankClaim("§4.2", "table2", _MISTRAL, ("amc", "math500", "omni_math", "minerva"), 1),
    RankClaim("§4.2", "table2", _QWEN, _ALL, 1),
)

STATEMENTS = (
    Finding("A13", "Table 3 caption, Panel B", "improves on TEPO-w/o. KL", "0 of 6 rows are above its 32.21"),
    Finding("A17", "§4.2 Qwen2.5-7B", "first on “four core” benchmarks", "5 are listed"),
    Finding("A18", "Abstract, convergence time", "-50%", "-45% (72 against 132 steps)"),
    Finding("A18", "§4.1 training data", "80 x 64 = 5120 problems", "132 steps x 64 prompts = 8448"),
)
"""Statements in words that the tables contradict."""

SIZES = (
    "OMNI-MATH is fitted: sizes 2773-2789 explain most averages (2785 taken: 27 rows). Its cells point to 2811: "
    "40 of 41 are shares of 2811, 26 of 2785; but with 2811 only 20 averages follow."
)
"""Size of OMNI-MATH, which the paper does not give."""
