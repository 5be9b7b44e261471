"""Files with the names of modules, in a folder in which somebody works: each writes down that it was executed."""

import sys
from pathlib import Path

_DEPENDENCIES = """
accelerate altair antlr4 apex bitsandbytes click compressed_tensors datasets deepspeed einops filelock flash_attn
fsspec hjson httpx huggingface_hub hydra jinja2 jsonschema latex2mathml latex2sympy2_extended liger_kernel lm_eval
markdown math_verify mpmath narwhals networkx ninja numba numpy omegaconf packaging pandas peft PIL psutil pyarrow
pydantic ray regex requests rich safetensors scipy sitecustomize sklearn sympy tepo tepo_cli tokenizers torch
torchvision tensorboard tqdm trackio transformers triton trl typer typing_extensions usercustomize vl_convert vllm
wandb xformers yaml zmq
"""
_NAMES = (*sys.stdlib_module_names, *_DEPENDENCIES.split())


def lay(folder: Path, mark: Path) -> None:
    """One for each module of the standard library and of what the suite may import, two as packages; a plugin of
    Hydra's, and one that torch and vLLM load where a distribution beside it says so."""
    text = f"with open({str(mark)!r}, 'a') as file:\n    file.write(__file__ + '\\n')\n"
    names = [f"{name}/__init__" if name in ("email", "torch") else name for name in _NAMES]
    for name in (*names, "hydra_plugins/plugin", "plugin"):
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    about = folder / "plugin-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    groups = ("torch.backends", "vllm.general_plugins", "vllm.platform_plugins")
    (about / "entry_points.txt").write_text("".join(f"[{group}]\nplugin = plugin:run\n" for group in groups))


def executed(mark: Path) -> list[str]:
    """Those that were executed."""
    return sorted(set(mark.read_text().split("\n")) - {""}) if mark.exists() else []
