"""Claims that the text of the TEPO paper makes about its tables, as data. Section numbers are those of arXiv
2604.12736."""

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
