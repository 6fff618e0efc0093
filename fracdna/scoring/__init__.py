"""Variants of a genome under a model: the command's entry point and its Python doors."""

from fracdna.scoring.alleles import Alleles, judge_alleles
from fracdna.scoring.command import run
from fracdna.scoring.options import ScoringOptions
from fracdna.scoring.reference import ReferenceCheck, check_reference
from fracdna.scoring.saturation import every_substitution
from fracdna.scoring.scores import SiteScorer
from fracdna.scoring.variants import Record, read_vcf
from fracdna.scoring.windows import Site, plan_sites

__all__ = [
    "Alleles",
    "Record",
    "ReferenceCheck",
    "ScoringOptions",
    "Site",
    "SiteScorer",
    "check_reference",
    "every_substitution",
    "judge_alleles",
    "plan_sites",
    "read_vcf",
    "run",
]
