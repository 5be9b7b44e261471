"""The character tokenizer of the laptop scale: 42 tokens, a character each, with `\\boxed{` and `}` as single tokens.

A byte-level BPE without merges, which is what Qwen2's own class makes of a tiny vocabulary: `AutoTokenizer` picks that
class for every model of the architecture, whatever the files say. Nothing is added around a text: a prompt goes to the
model as it is, and a response ends with `<eos>`. Characters outside the vocabulary are dropped.
"""

from tokenizers import AddedToken
from transformers import Qwen2Tokenizer

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
BOX_OPEN, BOX_CLOSE = "\\boxed{", "}"
CHARACTERS = "0123456789+-*/%=,;:() acdgilmnorstux"
VOCABULARY = (*SPECIAL, BOX_OPEN, BOX_CLOSE, *CHARACTERS)


def build_tokenizer(max_length: int) -> Qwen2Tokenizer:
    """The tokenizer, for models of `max_length` positions."""
    spelled = {" ": "Ġ"}  # byte-level spelling; all other characters are their own byte
    tokenizer = Qwen2Tokenizer(
        vocab={spelled.get(token, token): index for index, token in enumerate(VOCABULARY)},
        merges=[],
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(BOX_OPEN, normalized=False)])
    return tokenizer
