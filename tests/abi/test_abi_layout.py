# SPDX-License-Identifier: Apache-2.0
"""
The mirror against the C header, and the host's readers against everything a tenant could write.
"""

from __future__ import annotations

import os
import subprocess
from functools import partial
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolation.contract import abi, breach_ring
from isolation.lib import files, native

CARD = abi.CardLimit(UUID(int=7), 5 << 30, 400 << 20, 300_000, abi.Policy.BURST, 4, online=True)


def reader(raw: bytes):
    """A pread over bytes."""
    return lambda length, offset: raw[offset : offset + length]


@pytest.mark.sanitizer
def test_sizes_and_sections_are_those_of_the_header(plain_library, monkeypatch):
    """The built library tells its layout; the mirror has the same."""
    monkeypatch.setattr(native, "library_path", lambda *, strict=False: plain_library)  # noqa: ARG005

    assert [("abi", True), ("preload", True)] == [(check.name, check.ok) for check in native.self_check()]


C_PROBE = """
#include <stdio.h>
#include <string.h>
#include "gpushare_abi.h"
int main(int argc, char **argv)
{
    static struct gs_limits limits;
    static struct gs_feed feed;
    static struct gs_region region;
    FILE *file = fopen(argv[1], "rb");
    if (argc < 4 || !file || fread(&limits, sizeof limits, 1, file) != 1 || !(file = fopen(argv[2], "rb")) ||
        fread(&feed, sizeof feed, 1, file) != 1 || !(file = fopen(argv[3], "r+b")) ||
        fread(&region, sizeof region, 1, file) != 1)
        return 1;
    struct gs_limit_card *card = &limits.cards[0];
    printf("%lu %u %s %lu %lu %u %u %u %u %u %u\\n", limits.generation, limits.flags, (char *)limits.promise,
           card->memory_bytes, card->context_bytes, card->core_ppm, card->policy, card->weight, card->online,
           card->uuid[15], limits.card_count);
    const struct gs_feed_card *fed = &feed.cards[1];
    printf("%lu %lu %lu %lu %u %u %lu %lu %d %u %u %u %u\\n", feed.written_ns, fed->own_ns, fed->sample_ns,
           fed->reserved, fed->rate_ppm, fed->rounding_ppm, fed->sampled_ns, fed->memory_ns, fed->excess_granules,
           fed->ledger_granules, fed->released_granules, fed->memory_flags, feed.cards[0].memory_flags);
    region.cards[1].word = 6 | 4097ULL % 4096 << 32 | 9ULL << 44;
    memset(region.cards[1].uuid, 0xab, 16);
    region.cards[1].limit_bytes = 11, region.cards[1].peak_bytes = 12, region.cards[1].denied = 13;
    region.cards[1].denied_bytes = 14, region.cards[1].charged_ns = 15, region.cards[1].event_ns = 16;
    region.cards[1].launches = 17, region.cards[1].throttled_ns = 18, region.cards[1].wanted_ns = 19;
    region.cards[1].rate_ppm = 20, region.cards[1].flags = 1, region.cards[1].overrun_ns = 32;
    region.cards[1].released_granules = 33;
    region.slots_high = 3, region.limits_generation = 21;
    strcpy((char *)region.library, "9.9");
    region.slots[2] = (struct gs_slot){.state = GS_SLOT_LIVE, .generation = 22, .pid = 23, .start_ticks = 24,
                                       .name = "name", .unknown = 25, .guessed = {[1] = 33, [15] = 34},
                                       .imported = {[1] = 35}, .managed = {[1] = 36}, .underway = {[1] = 37}};
    region.slots[2].lanes[1][3].state = 4;
    region.slots[0] = (struct gs_slot){.state = GS_SLOT_LIVE};
    region.slots[0].lanes[1][1] = (struct gs_lane){.state = 8ULL << 40 | 5, .intent = 9ULL << 40 | 2};
    region.ring_head = 1;
    region.ring[0] = (struct gs_record){.sequence = 1, .mono_ns = 26, .kind = GS_BREACH_DENIED, .card = 1, .pid = 27,
                                        .requested = 28, .used = 29, .limit = 30, .api = 31};
    rewind(file);
    return fwrite(&region, sizeof region, 1, file) != 1 || fclose(file);
}
"""


def test_each_field_arrives_where_it_was_written(tmp_path):
    """Python packs, C reads; C writes, Python reads: every field, with a step under way counted as finished."""
    source, program = tmp_path / "probe.c", tmp_path / "probe"
    source.write_text(C_PROBE)
    include = files.__file__.replace("files.py", "include")
    subprocess.run(["gcc", "-Wall", "-Werror", f"-I{include}", "-o", program, source], check=True)
    limits, feed, region = (tmp_path / name for name in ("limits", "feed", "region"))
    files.write_limits(limits, abi.Limits(3, "ns/pod", (CARD,), abi.Flag.STRICT))
    memory = abi.MemoryFeed(9, -5 * 512, 10 * 512, (1 << 32) + 11)
    files.write_feed(feed, [abi.CardFeed(1, 2), abi.CardFeed(3, 4, 6, 7, 8, memory)], now_ns=7)
    files.create_region(region, "ns/pod")

    done = subprocess.run([program, limits, feed, region], capture_output=True, text=True, check=True, timeout=300)
    read = files.read_region(region)
    assert read.cards == files.read_cards(region)

    assert [
        f"3 1 ns/pod {5 << 30} {400 << 20} 300000 1 4 1 7 1",
        "7 3 4 0 6 7 8 9 -5 10 11 1 0",
    ] == done.stdout.splitlines()
    card = abi.CardLedger(
        UUID(bytes=b"\xab" * 16),
        6 * 512,
        *range(11, 21),
        uncorrected=True,
        overrun_ns=32,
        released=33,
        version=4097 % 4096 | 9 << 12,
    )
    assert (card,) == read.cards
    assert ("ns/pod", "9.9", 21, 1) == (read.promise, read.library, read.limits_generation, read.breaches_total)
    first, second = read.slots
    assert (2 * 512, 4 * 512) == (first.bytes_by_card[1], second.bytes_by_card[1])
    assert (2, 23, 24, 22, "name", 25) == (
        *(second.index, second.pid, second.start_ticks, second.generation, second.name, second.unknown),
    )
    assert (33, 34, 35, 36, 37) == (
        *(second.guessed[1], second.guessed[15], second.imported[1], second.managed[1], second.underway[1]),
    )
    record = breach_ring.BreachRecord(1, 26, abi.Breach.DENIED, 1, *range(27, 32))
    assert (1, 0, (record,)) == files.read_breaches(region)


def test_limits_come_back_as_they_were_promised(tmp_path):
    """Rewritten in place: same inode, same size, the newest promise, an even sequence."""
    path = tmp_path / "limits"
    files.write_limits(path, abi.Limits(1, "a", (CARD,)))
    inode = path.stat().st_ino
    files.write_limits(path, abi.Limits(2, "a", (CARD, CARD)))

    assert abi.Limits(2, "a", (CARD, CARD)) == abi.unpack_limits(path.read_bytes())
    assert (inode, abi.LIMITS_BYTES) == (path.stat().st_ino, path.stat().st_size)
    assert 0 == path.read_bytes()[16] % 2


@given(st.binary(max_size=6000))
def test_garbage_is_refused_never_guessed(raw):
    """Whatever the bytes, the readers answer with AbiError."""
    for read in (
        abi.unpack_limits,
        lambda r: abi.read_region(reader(r)),
        lambda r: breach_ring.read_breaches(reader(r)),
    ):
        with pytest.raises(abi.AbiError):
            read(raw)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, abi.REGION_BYTES - 1), st.integers(0, 255)), max_size=60), st.integers(0, 1 << 22)
)
def test_a_scribbled_region_is_read_or_refused(scribbles, size):
    """Any bytes at any place, cut anywhere: a reading, or AbiError; never another exception."""
    raw = bytearray(abi.fresh_region("p"))
    raw[128:132] = b"\xff\xff\xff\xff"
    for at, value in scribbles:
        raw[at] = value
    for read in (abi.read_region, breach_ring.read_breaches):
        try:
            read(reader(bytes(raw[:size])))
        except abi.AbiError:
            continue


def test_special_files_are_not_followed_or_waited_for(tmp_path):
    """A link, a fifo or a folder in the region's place is refused at once."""
    fifo, link, short = tmp_path / "fifo", tmp_path / "link", tmp_path / "short"
    os.mkfifo(fifo)
    files.create_region(tmp_path / "region")
    link.symlink_to(tmp_path / "region")
    short.write_bytes(abi.fresh_region()[:9000])

    for path in (fifo, short, tmp_path):
        with pytest.raises(abi.AbiError):
            files.read_region(path)
    with pytest.raises(OSError, match="symbolic"):
        files.read_region(link)


def test_lost_breaches_are_counted(tmp_path):
    """A ring that lapped its reader says how many records are gone."""
    path = tmp_path / "region"
    files.create_region(path)
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, (2000).to_bytes(8, "little"), 64)
    for index in range(2000 - abi.RING, 2000):
        at = abi.RING_OFFSET + index % abi.RING * abi.RECORD_BYTES
        os.pwrite(fd, (index + 1 if index != 1500 else 0).to_bytes(8, "little"), at)
    head, lost, found = breach_ring.read_breaches(partial(os.pread, fd), since=900)
    os.close(fd)

    assert (2000, 77, 1023) == (head, lost, len(found))
