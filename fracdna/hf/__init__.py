"""Models of fracdna as models of Hugging Face transformers; importing this registers them.

AutoConfig, AutoModel, AutoModelForCausalLM and AutoTokenizer then open their folders without remote
code: it is this package that runs. Needs the extra `hf`.
"""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError(
        "fracdna.hf needs the package transformers, which is missing: pip install 'fracdna[hf]'",
        name="transformers",
    )

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from fracdna.hf.cache import FracdnaCache
from fracdna.hf.config import FracdnaConfig
from fracdna.hf.export import export, wrap
from fracdna.hf.models import FracdnaForCausalLM, FracdnaModel
from fracdna.hf.tokenizer import FracdnaTokenizer

__all__ = [
    "FracdnaCache",
    "FracdnaConfig",
    "FracdnaForCausalLM",
    "FracdnaModel",
    "FracdnaTokenizer",
    "export",
    "wrap",
]

AutoConfig.register(FracdnaConfig.model_type, FracdnaConfig, exist_ok=True)
AutoModel.register(FracdnaConfig, FracdnaModel, exist_ok=True)
AutoModelForCausalLM.register(FracdnaConfig, FracdnaForCausalLM, exist_ok=True)
AutoTokenizer.register(FracdnaConfig, tokenizer_class=FracdnaTokenizer, exist_ok=True)
