# SPDX-License-Identifier: Apache-2.0
"""
The agent's book as text and as a value, and which devices are chosen by it.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolation.contract.model import Slice
from isolation.contract.quantity import GIB
from isolation.node.book import Book, BookError, Entry, card_of, device_of, dump, entry_of, hash_of, id_of, load
from isolation.node.choose import mismatch, preferred
from isolation.node.world import Ask

IDS = st.frozensets(st.builds(id_of, st.sampled_from(["GPU-0", "GPU-1"]), st.integers(0, 7)), min_size=1)
WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def entry(*numbers, uid="u1", container="main", card="GPU-0", **more):
    """An entry of some units of a card."""
    return Entry(frozenset(id_of(card, n) for n in numbers), uid, "ml", "a", container if uid else "", **more)


@given(st.lists(st.tuples(IDS, WORDS, st.booleans(), st.booleans()), max_size=6))
def test_a_book_is_read_as_it_was_written(things):
    """
    Every field survives the disk.
    """
    made = (Entry(ids, f"u{at}", "ml", "pod", box, *flags, made=at) for at, (ids, box, *flags) in enumerate(things))
    book = Book(made)

    assert list(book) == list(load(dump(book)))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"format": 2, "entries": []}', '{"format": 1}', '{"format": 1, "entries": [1]}'),
        '{"format": 1, "entries": [{"ids": [], "pod": ["", "", "", ""], "init": false, "guessed": false, "made": 1}]}',
        '{"format": 1, "entries": [{"ids": ["x"], "pod": ["", "", "", ""], "init": true, "guessed": true, "made": 1}]}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_a_text_that_is_no_book_is_refused(text):
    """
    Whoever misreads it gives memory away twice.
    """
    with pytest.raises(BookError):
        load(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | WORDS, lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner)
    )
)
def test_whatever_json_stands_there_is_a_book_or_an_error(thing):
    """
    Nothing else comes of it.
    """
    for text in (json.dumps(thing), json.dumps({"format": 1, "entries": [thing]})):
        with pytest.raises(BookError):
            load(text)


def test_a_container_that_gets_other_devices_keeps_the_former_until_it_ends():
    """
    A kubelet without memory admits it again, and its process may use what it had.
    """
    book = Book()
    book.claim(entry(0, 1, made=book.next()))
    book.claim(entry(2, 3, made=book.next()))

    assert {id_of("GPU-0", n) for n in range(4)} == book.held()
    assert frozenset(id_of("GPU-0", n) for n in (2, 3)) == book.get("u1", "main").ids
    assert 2 == len(book.of("u1"))


def test_a_guess_that_was_wrong_leaves_the_devices_to_nobody():
    """
    They are another pod's.
    """
    book = Book()
    book.claim(entry(0, 1, made=book.next(), guessed=True))
    book.claim(entry(2, 3, made=book.next()))

    assert ["", "u1"] == [one.uid for one in book]


def test_unknown_devices_are_of_the_pod_that_shares_one():
    """
    An init container's devices are handed on within its pod and nowhere else.
    """
    first, second, other = entry(0, 1, 2, 3, uid=""), entry(3, uid=""), entry(5, uid="")
    book = Book(Entry(one.ids, made=at) for at, one in enumerate((first, other, second)))

    found = book.unknown(entry(1).ids)

    assert [first.ids, second.ids] == [one.ids for one in found]


def test_the_name_of_a_device_is_that_of_the_set():
    """
    Order does not matter, and every other set has another name that CDI accepts.
    """
    assert hash_of(["b-_-1", "a-_-0"]) == hash_of(("a-_-0", "b-_-1"))
    assert hash_of(["a-_-0"]) != hash_of(["a-_-1"])
    kind, _, name = device_of(["a-_-0"]).partition("=")
    assert ("gpushare.dev/alloc", True) == (kind, name.isalnum())


@given(
    st.lists(st.sampled_from([id_of(f"GPU-{c}", n) for c in range(3) for n in range(4)]), max_size=14),
    st.lists(st.sampled_from([id_of("GPU-1", n) for n in range(4)]), max_size=3),
    st.integers(0, 8),
    st.dictionaries(st.sampled_from(["GPU-0", "GPU-1", "GPU-9"]), st.integers(0, 4)),
    st.dictionaries(st.sampled_from([id_of("GPU-0", n) for n in range(4)]), st.integers(-1, 3)),
)
def test_the_answer_is_exact_whatever_is_asked(available, must, size, wanted, ranks):
    """
    As many as were asked for, or all there are; each once, each offered; those that must be, are.
    """
    ask = Ask((*available, *must), tuple(must), size)

    answer = preferred(ask, wanted, lambda one: ranks.get(one, 0))

    offered = set(available) | set(must)
    assert min(size, len(offered)) == len(answer) == len(set(answer))
    assert set(answer) <= offered
    assert set(list(dict.fromkeys(must))[:size]) <= set(answer)


@given(st.integers(1, 3), st.integers(1, 4), st.randoms(use_true_random=False))
def test_with_room_by_the_book_the_answer_is_what_the_record_says(cards, each, dice):
    """
    Each card's part, of units that nobody has, however the kubelet shuffles its offer.
    """
    wanted = {f"GPU-{card}": each for card in range(cards)}
    offer = [id_of(f"GPU-{card}", n) for card in range(4) for n in range(8)]
    held = {id_of(f"GPU-{card}", n) for card in range(4) for n in range(4)}
    dice.shuffle(offer)

    answer = preferred(Ask(tuple(offer), (), cards * each), wanted, lambda one: 2 * (one in held))

    assert Counter(wanted) == Counter(map(card_of, answer))
    assert held.isdisjoint(answer)


def test_what_is_wrong_is_said_for_people():
    """
    Which cards, or how much.
    """
    part = [Slice("GPU-0", 0, 2 * GIB)]

    assert "" == mismatch(entry(0, 1).ids, part, GIB)
    assert "the kubelet allocated devices of GPU-1, but the pod was placed on GPU-0" == mismatch(
        entry(0, 1, card="GPU-1").ids, part, GIB
    )
    text = "the kubelet allocated 1 GiB of GPU-0, but the pod was placed with 2 GiB"
    assert text == mismatch(entry(0).ids, part, GIB)


def test_an_entry_of_somebody_names_pod_and_container():
    """
    Half an owner is none.
    """
    with pytest.raises(BookError):
        entry_of({"ids": ["a-_-1"], "pod": ["ml", "a", "uid", ""], "init": False, "guessed": False, "made": 1})


@pytest.mark.parametrize("ids", [(), ("vendor-7",), ("GPU-0-_-1", ""), ("GPU-0-_-" + "9" * 60,)], ids=range(4))
def test_a_claim_that_no_disk_could_hold_is_refused(ids):
    """
    A book with such an entry could not be read again, and every entry of it would be lost.
    """
    book = Book([entry(1)])
    with pytest.raises(BookError, match="allocation has no valid device IDs"):
        book.claim(Entry(frozenset(ids), "u2", "ml", "b", "main", made=2))
    assert [entry(1)] == list(book)
