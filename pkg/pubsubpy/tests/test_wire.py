"""The vectors of pkg/wire/testdata."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pubsubpy import Gap, Message, Position, Problem
from pubsubpy.subscription import begins
from pubsubpy.wire import Done, Hello, Moved, check_topic, decode

VECTORS = Path(__file__).parents[2] / "wire" / "testdata"
FRAMES = json.loads((VECTORS / "frames.json").read_text())
POSITIONS = json.loads((VECTORS / "positions.json").read_text())
TOPICS = json.loads((VECTORS / "topics.json").read_text())

# Vectors with a number that a float does not hold: it becomes infinite.
INFINITE = {"JSON numbers as published"}


def is_finite(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(is_finite, value))
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("vector", FRAMES, ids=lambda v: v["name"])
@pytest.mark.parametrize("binary", [False, True])
def test_frame(vector: dict[str, Any], binary: bool) -> None:
    line = vector["line"].encode() if binary else vector["line"]
    if (want := vector.get("content")) is None:
        with pytest.raises(Problem) as refusal:
            decode(line)
        assert refusal.value.code == "malformed"
        return
    frame = decode(line)
    match want["kind"]:
        case "message":
            assert isinstance(frame, Message)
            assert frame.position == f"{want['topic']}@{want['epoch']}:{want['offset']}"
            assert (frame.position.topic, frame.position.epoch, frame.position.offset) == (
                want["topic"], want["epoch"], want["offset"])
            assert (frame.time, frame.type, frame.id, frame.key, frame.by) == (
                want["time"], want.get("type"), want.get("id"), want.get("key"), want.get("by"))
            assert frame.claims == json.loads(want.get("claims", "null"))
            if "json" in want:
                assert frame.data == json.loads(want["json"])
                assert is_finite(frame.data) == (vector["name"] not in INFINITE)
            else:
                payload = frame.data.encode() if isinstance(frame.data, str) else frame.data
                assert payload == (want["utf8"].encode() if "utf8" in want else bytes.fromhex(want["hex"]))
        case "gap":
            assert isinstance(frame, Gap)
            assert (frame.topic, frame.reason, frame.detail) == (want["topic"], want["reason"], want.get("detail", ""))
            for mark, wanted in ((frame.after, want["after"]), (frame.position, want["position"])):
                assert mark == f"{want['topic']}@{wanted['epoch']}:{wanted['offset']}"
        case "moved":
            assert frame == Moved([Position(f"{p['topic']}@{p['epoch']}:{p['offset']}") for p in want["positions"]])
        case "hello":
            assert isinstance(frame, Hello)
            assert frame.positions == [f"{p['topic']}@{p['epoch']}:{p['offset']}" for p in want["positions"]]
        case "end":
            assert isinstance(frame, Problem)
            assert (frame.status, frame.code) == (want["status"], want["code"])
        case "done":
            assert frame == Done(Position(f"{want['position']['topic']}@{want['position']['epoch']}:{want['position']['offset']}"), want["more"])
        case kind:
            assert kind in ("heartbeat", "reply") and frame is None


@pytest.mark.parametrize("vector", POSITIONS["positions"], ids=lambda v: v["text"][:40])
def test_position(vector: dict[str, Any]) -> None:
    position = Position(vector["text"])
    assert (position.topic, position.epoch, position.offset) == (vector["topic"], vector["epoch"], vector["offset"])
    assert position == vector["text"]


@pytest.mark.parametrize("text", POSITIONS["invalid_positions"], ids=lambda t: repr(t[:40]))
def test_invalid_position(text: str) -> None:
    with pytest.raises(Problem) as refusal:
        Position(text)
    assert refusal.value.code == "invalid_position"


@pytest.mark.parametrize("vector", POSITIONS["starts"], ids=lambda v: v["text"][:40])
def test_start(vector: dict[str, Any]) -> None:
    start = {"position": vector["text"], "newest": {"newest": vector.get("newest")}}.get(vector["from"], vector["from"])
    names, positions = begins(vector["topic"], start)
    assert positions.get(vector["topic"], names[vector["topic"]]) == vector["text"]


@pytest.mark.parametrize("name", TOPICS["valid"] + TOPICS["reserved"], ids=lambda t: t[:40])
def test_topic(name: str) -> None:
    assert check_topic(name) == name


@pytest.mark.parametrize("name", TOPICS["invalid"], ids=lambda t: repr(t[:40]))
def test_invalid_topic(name: str) -> None:
    with pytest.raises(Problem) as refusal:
        check_topic(name)
    assert refusal.value.code == "invalid_topic"


def test_a_position_of_another_topic_is_refused() -> None:
    with pytest.raises(Problem) as refusal:
        begins("a", "b@k3:1")
    assert refusal.value.code == "invalid_position"
