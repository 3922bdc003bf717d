# SPDX-License-Identifier: Apache-2.0
"""ffmpeg moves frames to a card and back."""

from __future__ import annotations

from cuda_programs.harness import debian_home, debian_libraries, showed

FRAMES = 25
FILTER = "hwupload,hwdownload,format=rgb0"


def test_frames_come_back_from_the_card_as_they_went(machine):
    """Checksums of every frame, without a card, with one, and with a share of one."""
    folder = debian_home("ffmpeg")
    source = ("-f", "lavfi", "-i", f"testsrc=size=1920x1080:rate={FRAMES}", "-t", "1")
    card = ("-init_hw_device", "cuda=card:0", "-filter_hw_device", "card")
    tool = (folder / "usr" / "bin" / "ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "error")
    libraries = {"libraries": debian_libraries(folder)}
    host = machine.plain(*tool, *source, "-vf", "format=rgb0", "-f", "framemd5", "-", **libraries)
    plain, shared = machine.both(*tool, *card, *source, "-vf", FILTER, "-f", "framemd5", "-", **libraries)
    copies = sum(one["copies"] for one in machine.records()["cards"][0]["processes"])

    frames = [line for line in host.splitlines() if not line.startswith("#")]
    assert FRAMES == len(frames)
    assert host == plain == shared
    assert copies >= 2 * 2 * FRAMES
    showed("ffmpeg", "`hwupload`, `hwdownload` of 1080p frames", f"{len(frames)} frames unchanged", "the same")
