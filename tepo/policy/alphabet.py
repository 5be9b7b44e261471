"""The character tokenizer of the laptop scale: 42 tokens, a character each, with `\\boxed{` and `}` as single tokens.

It is an ordinary fast tokenizer (`tokenizer.json`), so `AutoTokenizer.from_pretrained` loads it without remote code.
Nothing is added around a text: a prompt goes to the model as it is, and a response ends with `<eos>`.
"""

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
BOX_OPEN, BOX_CLOSE = "\\boxed{", "}"
CHARACTERS = "0123456789+-*/%=,;:() acdgilmnorstux"
VOCABULARY = (*SPECIAL, BOX_OPEN, BOX_CLOSE, *CHARACTERS)


def build_tokenizer(max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer, for models of `max_length` positions. A character it does not know becomes `<unk>`."""
    tokenizer = Tokenizer(models.WordLevel({token: index for index, token in enumerate(VOCABULARY)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
        padding_side="left",
    )
