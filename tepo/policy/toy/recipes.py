"""The recipes of the base models of the laptop scale. RECIPES: those that ship with the package, by the name in
`package:NAME`. SIZES: the first of them at other sizes, for questions about size; not shipped."""

from dataclasses import replace

from tepo.policy.toy.warmstart import Phase, Recipe

RECIPES: dict[str, Recipe] = {
    "laptop": Recipe(
        tasks=dict.fromkeys(
            ("add2", "add3", "add4", "mul2", "mul3", "mod3", "mod4", "gcd", "max3", "max4", "lin", "ds4", "ds6"), 1.0
        ),
        phases=(Phase(1600, guesses=0.05), Phase(400, guesses=0.25, slip=0.18)),
    ),
    "laptop_sparse": Recipe(
        tasks=dict.fromkeys(("add7", "mul6", "mul22", "ds14", "sort10", "bin11", "mod9"), 1.0)
        | {"add4": 0.5, "mul3": 0.5, "ds6": 0.4, "sort5": 0.4, "bin6": 0.4, "mod4": 0.5},
        phases=(Phase(1300), Phase(400, skip=0.19)),
        learning_rate=2e-3,
    ),
    "laptop_chains": Recipe(
        tasks=dict.fromkeys(("run2", "run3", "run4", "run6", "run10", "run14", "run20", "run29"), 1.0),
        phases=(Phase(1300), Phase(300, guesses=0.05, chain_slip=0.45)),
        learning_rate=2e-3,
    ),
}

_LAPTOP = RECIPES["laptop"]
SIZES: dict[str, Recipe] = {
    "laptop_50k": replace(_LAPTOP, hidden=48, feed_forward=128),
    "laptop_1m": replace(_LAPTOP, hidden=192, feed_forward=512, heads=6, layers=3),
    "laptop_4m": replace(_LAPTOP, hidden=320, feed_forward=896, heads=10, layers=4, learning_rate=1e-3),
}
