# SPDX-License-Identifier: Apache-2.0
"""
The real processes of this machine in so many columns and lines: tenants, cards, alerts, addresses.

Pure: (stack, width, room) -> lines. Decides what gives way where there is little room: tenants and
cards keep their least before alerts and addresses do. How the embedded cluster looks is `view`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.text import Text

from dashboards.terminal.memory_bar import BLOCKS, OVER_STYLE, MemoryUse, bar
from dashboards.terminal.text_format import clock, column, gib, percent
from dashboards.terminal.up import tables
from dashboards.terminal.up.screen import MIN_HEIGHT, Block, deal
from dashboards.terminal.up.totals import Tally
from isolation.contract.stack import DOWN, FIRING, UP
from isolation.contract.text import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dashboards.terminal.memory_bar import BarCharacters
    from isolation.contract.reading import ContainerReading
    from isolation.contract.stack import StackAlert, StackProcess, StackStatus, TenantStatus

NAME_CELLS: Final = 10
_FIGURES: Final = 6 + 9 + 9 + 8 + 11
DOES_CELLS: Final = 27
"""What a tenant does, in words: where there is room for it."""
_WITH_WORDS: Final = 100
_MAX_ALERTS: Final = 4
_MAX_TENANTS: Final = 5
_FEW_CARDS: Final = 4
"""So many are shown however low the window is."""
_LABEL_CELLS: Final = 13
_WITH_HEADINGS: Final = 30
"""Lines from which there is room to say what is what."""
NOT_MEASURED: Final = "running; the exporter does not report it now"
MACHINE: Final = "THIS MACHINE: real processes, each on a share of a simulated card"
CLUSTER: Final = "EMBEDDED CLUSTER: the same code on simulated nodes, with its own clock"


def machine(stack: StackStatus, width: int, height: int, signs: BarCharacters = BLOCKS) -> list[Text]:
    """The machine's part of a screen of that size: what a cluster needs at least is left over."""
    room = max(0, height - MIN_HEIGHT - 1)
    if height < _WITH_HEADINGS:
        return stack_lines(stack, width, room, signs)
    top, below = (Text(column(text, width), tables.DIM) for text in (MACHINE, CLUSTER))
    return [top, *stack_lines(stack, width, room - 2, signs), below]


def stack_lines(stack: StackStatus, width: int, room: int, signs: BarCharacters = BLOCKS) -> list[Text]:
    """At most `room` lines of `width` cells at most."""
    blocks = [_tenants(stack, signs), _cards(stack, signs), _alerts(stack), _where(stack, width)]
    order = (0, 1, 2, 3)  # of who is served first
    given = dict(zip(order, deal(room, [(blocks[i].least, blocks[i].most) for i in order]), strict=True))
    lines = [line for at, block in enumerate(blocks) for line in block.draw(width, given[at])[: given[at]]]
    for line in lines:
        line.truncate(width)
    return lines


def _reading(stack: StackStatus, tenant: TenantStatus) -> ContainerReading | None:
    """What is measured of a tenant: its pod bears its name."""
    found = stack.node.containers if stack.node is not None else ()
    return next((one for one in found if one.pod == tenant.name), None)


def _tenants(stack: StackStatus, signs: BarCharacters) -> Block:
    pairs = [(tenant, _reading(stack, tenant)) for tenant in stack.tenants]
    largest = max((max(p.promised_bytes, (r.used_bytes or 0) if r else 0) for p, r in pairs), default=1)
    # who is over its promise may not be cut off
    pairs.sort(key=lambda pair: -_over(*pair))

    def draw(width: int, lines: int) -> list[Text]:
        return [_tenant_header(width), *(_tenant_row(p, r, largest, width, signs) for p, r in pairs[: lines - 1])]

    return Block(min(len(pairs), _MAX_TENANTS) + 1, len(pairs) + 1, draw)


def _over(tenant: TenantStatus, one: ContainerReading | None) -> int:
    return 0 if one is None or one.used_bytes is None else max(0, one.used_bytes - tenant.promised_bytes)


def _words(width: int) -> int:
    return DOES_CELLS if width >= _WITH_WORDS else 0


def _area(width: int) -> int:
    return max(1, width - NAME_CELLS - 6 - _FIGURES - _words(width))


def _tenant_header(width: int) -> Text:
    left = column("TENANT", NAME_CELLS) + column("CARD", 5) + column("MEMORY", _area(width)) + " "
    names = (("USED", 6), ("PROMISED", 9), ("COMPUTE", 9), ("DENIED", 8), ("OVER FOR", 11))
    right = "".join(column(name, cells, right=True) for name, cells in names)
    return Text(column(left + right + ("  WHAT IT DOES" if _words(width) else ""), width), tables.TITLE_STYLE)


def _tenant_row(
    tenant: TenantStatus, one: ContainerReading | None, largest: int, width: int, signs: BarCharacters
) -> Text:
    name = Text(column(tenant.name, NAME_CELLS))
    if one is None or tenant.process.state == DOWN:
        description = tenant.process.remark or (NOT_MEASURED if tenant.process.state == UP else tenant.process.state)
        return Text.assemble(
            name, (column(description, width - NAME_CELLS), OVER_STYLE if tenant.process.remark else "yellow")
        )
    over = _over(tenant, one)
    memory = MemoryUse(largest, one.allocated_bytes, one.used_bytes, one.used_bytes is None, over)
    core = percent(one.used_core_ratio)
    if one.allocated_core_ratio is not None:
        core = f"{core.removesuffix('%')}/{percent(one.allocated_core_ratio)}"
    denied = "" if one.denied is None else f"{one.denied:,}"
    line = Text.assemble(
        name,
        column(str(one.index), 5),
        bar(memory, _area(width), signs),
        " ",
        _figure(gib(one.used_bytes), 6, OVER_STYLE if over else ""),
        column(gib(one.allocated_bytes), 9, right=True) + column(core, 9, right=True),
        _figure(denied, 8, "bold yellow" if one.denied else ""),
        _figure(clock(one.over_limit_seconds) if one.over_limit_seconds else "", 11, OVER_STYLE if over else ""),
    )
    return line.append(f"  {tenant.description}") if _words(width) else line


def _figure(text: str, cells: int, style: str) -> Text:
    """A number on the right of its column; only its digits stand out."""
    line = Text(column(text, cells, right=True))
    if style and text:
        line.stylize(style, cells - min(cells, len(text)))
    return line


def _cards(stack: StackStatus, signs: BarCharacters) -> Block:
    cards = Tally().uses((stack.node,) if stack.node is not None else ())[0]

    def draw(width: int, lines: int) -> list[Text]:
        shown = [tables.card_row(use, width, signs) for use in cards]
        if lines < len(shown):
            return []  # some of the cards would look like all of them
        return [tables.card_header(width), *shown] if lines > len(shown) else shown

    return Block(len(cards) if len(cards) <= _FEW_CARDS else 0, len(cards) + 1 if cards else 0, draw)


def _alerts(stack: StackStatus) -> Block:
    alerts = ordered(stack.alerts or (), {tenant.name for tenant in stack.tenants})

    def draw(width: int, lines: int) -> list[Text]:
        head = Text(column("ALERT", 9) + column("SEVERITY", 10) + "SUMMARY", tables.TITLE_STYLE)
        if not alerts:
            description = "; ".join(stack.remarks) if stack.alerts is None else "no alerts yet"
            return [Text.assemble((column("ALERT", 9), tables.TITLE_STYLE), description or "not known yet")]
        shown = alerts if len(alerts) < lines else alerts[: lines - 2]
        drawn = [_alert_row(one, width) for one in shown]
        rest = len(alerts) - len(shown)
        return [head, *drawn, *([tables.rest(rest, "alert", width)] if rest else [])]

    return Block(min(len(alerts), 2) + 1, min(len(alerts), _MAX_ALERTS) + 1, draw)


def ordered(alerts: Sequence[StackAlert], ours: Collection[str] = ()) -> list[StackAlert]:
    """Firing ones first, those about our own tenants before the cluster's, the graver before the others."""
    graver = {"critical": 0, "warning": 1}

    def rank(one: StackAlert) -> tuple[bool, bool, int, str, str]:
        return one.state != FIRING, one.subject not in ours, graver.get(one.severity, 2), one.name, one.subject

    return sorted(alerts, key=rank)


def _alert_row(one: StackAlert, width: int) -> Text:
    style = OVER_STYLE if one.state == FIRING else "yellow"
    return Text.assemble(
        (printable(one.state), style),
        " " * max(1, 9 - len(one.state)),
        column(one.severity, 10),
        column(alert_text(one), width - 19),
    )


def alert_text(one: StackAlert) -> str:
    """What it says, in one line."""
    subject = f" {one.subject}" if one.subject else ""
    return printable(f"{one.name}{subject}: {one.summary}" if one.summary else f"{one.name}{subject}")


def _where(stack: StackStatus, width: int) -> Block:
    lines = [Text.assemble((column("ENDPOINTS", _LABEL_CELLS), tables.TITLE_STYLE))]
    for part in stack.processes:
        item = _part(part)
        if lines[-1].cell_len > _LABEL_CELLS and lines[-1].cell_len + item.cell_len > width:
            lines.append(Text(" " * _LABEL_CELLS))
        lines[-1].append_text(item)
    return Block(1, len(lines), lambda _, __: lines)


def _part(part: StackProcess) -> Text:
    if part.state == UP:
        return Text.assemble(printable(part.name), " ", (part.url, "underline"), "   ")
    return Text.assemble(printable(part.name), " ", (printable(part.remark or part.state), "yellow"), "   ")


def stack_status(stack: StackStatus) -> str:
    """How the machine stands, in one line."""
    description = []
    for tenant in stack.tenants:
        one = _reading(stack, tenant)
        if one is None:
            description.append(f"{tenant.name} {tenant.process.state}")
            continue
        more = f", {one.denied:,} denied" if one.denied else ""
        over = _over(tenant, one)
        beyond = f", {gib(over)} GiB OVER its promise" if over else ""
        description.append(f"{tenant.name} {gib(one.used_bytes)} of {gib(one.allocated_bytes)} GiB{more}{beyond}")
    return printable(f"this machine: {'; '.join(description)}")


def stack_news(before: StackStatus | None, after: StackStatus) -> list[str]:
    """What gets a line of its own since `before`: processes that ended, alerts that came and went."""
    news = [printable(line) for line in after.events if before is None or line not in before.events]
    known = {(one.name, one.subject, one.state) for one in (before.alerts or ())} if before else set()
    present = {(one.name, one.subject, one.state) for one in after.alerts or ()}
    news += [
        f"alert {one.state}: {alert_text(one)}"
        for one in ordered(after.alerts or ())
        if (one.name, one.subject, one.state) not in known
    ]
    if before is not None and after.alerts is not None:
        gone = [one for one in before.alerts or () if (one.name, one.subject, one.state) not in present]
        subjects = {(one.name, one.subject) for one in after.alerts}
        news += [f"alert resolved: {alert_text(one)}" for one in gone if (one.name, one.subject) not in subjects]
    states = {part.name: part.state for part in (before.processes if before else ())}
    news += [
        f"{part.name} {part.url}"
        for part in after.processes
        if part.state == UP and part.url and states.get(part.name) != UP
    ]
    return news
