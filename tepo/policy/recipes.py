"""The recipes of the base models that ship with the package, by the name of their data group."""

from dataclasses import replace

from tepo.policy.warmstart import Recipe

RECIPES: dict[str, Recipe] = {
    "laptop": Recipe(
        tasks=dict.fromkeys(("add2", "add3", "add4", "mul2", "mul3", "mod3", "mod4", "gcd", "max3", "max4", "lin", "ds4", "ds6"), 1.0),
        steps=1400,
        clean_guesses=0.05,
        noisy_steps=280,
        noisy_guesses=0.3,
        slip=0.2,
    ),
}


def shortened(recipe: Recipe, steps: int | None, seed: int) -> Recipe:
    """The recipe with another seed and, unless None, another number of steps, its noisy part in proportion."""
    if steps is None:
        return replace(recipe, seed=seed)
    return replace(recipe, seed=seed, steps=steps, noisy_steps=round(recipe.noisy_steps * steps / recipe.steps), warmup_steps=min(recipe.warmup_steps, steps // 10))
