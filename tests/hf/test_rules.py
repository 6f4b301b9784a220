"""Rules: what they match, and what they refuse."""

import pytest

from bsparse_hf.rules import make_rule


def test_a_rule_matches_whole_names_only():
    rule = make_rule(r"layer\.\d+\.dense", {"density": 0.5})
    assert rule.matches("layer.11.dense")
    assert not rule.matches("encoder.layer.11.dense")
    assert not rule.matches("layer.11.dense.bias")


def test_defaults():
    rule = make_rule("a", {"density": 0.5})
    assert (rule.block, rule.format, rule.choose, rule.force) == ((64, 64), "bsr", "magnitude", False)


def test_block_is_an_int_or_a_pair():
    assert make_rule("a", {"density": 1, "block": 32}).block == (32, 32)
    assert make_rule("a", {"density": 1, "block": [128, 32]}).block == (128, 32)


def test_nonzero_needs_no_density():
    assert make_rule("a", {"choose": "nonzero"}).density is None


def test_a_rule_in_words():
    rule = make_rule(r"encoder\..*", {"density": 0.25, "block": (64, 32), "force": True})
    assert str(rule) == r"encoder\..*   bsr 64x32, density 0.25 by magnitude, force"


@pytest.mark.parametrize(
    ("pattern", "options", "error", "words"),
    [
        (3, {"density": 0.5}, TypeError, "pattern is 3"),
        ("(", {"density": 0.5}, ValueError, r"pattern '\(' is not a regular expression"),
        ("a", {}, ValueError, "density is missing.*pass density=0.25"),
        ("a", {"density": 1.5}, ValueError, r"density is 1.5; it must be in \(0, 1\]: pass 0.25"),
        ("a", {"density": 0}, ValueError, "density is 0;"),
        ("a", {"density": float("nan")}, ValueError, "density is nan"),
        ("a", {"density": True}, TypeError, "density is True"),
        ("a", {"density": "half"}, TypeError, "density is 'half'"),
        ("a", {"density": 0.5, "choose": "nonzero"}, ValueError, "density is 0.5; choose='nonzero' decides"),
        ("a", {"density": 0.5, "block": 0}, ValueError, "block is 0"),
        ("a", {"density": 0.5, "block": (16, 16, 16)}, ValueError, r"block is \(16, 16, 16\)"),
        ("a", {"density": 0.5, "format": "csr"}, ValueError, "format is 'csr'; it must be"),
        ("a", {"density": 0.5, "format": "semi24"}, NotImplementedError, "semi24 is not served"),
        ("a", {"density": 0.5, "choose": "luck"}, ValueError, "choose is 'luck'"),
        ("a", {"density": 0.5, "force": "yes"}, TypeError, "force is 'yes'"),
        ("a", {"density": 0.5, "blocks": 64}, ValueError, "unknown option 'blocks'.*density, block, format"),
    ],
)
def test_refused(pattern, options, error, words):
    with pytest.raises(error, match=words):
        make_rule(pattern, options)
