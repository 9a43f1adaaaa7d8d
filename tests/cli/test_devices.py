from __future__ import annotations

from cli.commands import anytpu


def test_devices_of_a_slice():
    run = anytpu("devices", "--tpu", "v2-8")
    assert run.returncode == 0
    assert run.stderr == "anytpu: the 8 cores are virtual: simulated on this machine's CPU (v2-8).\n"
    lines = run.stdout.splitlines()
    assert lines[:3] == [
        "v2-8: 8 virtual cores, simulated on this machine's CPU",
        "",
        "name                                       kind     chip   core  memory",
    ]
    assert lines[3:11] == [
        f"/job:worker/replica:0/task:0/device:TPU:{number}  virtual  {chip}  {core}     8 GiB"
        for number, (chip, core) in enumerate(
            (chip, core) for chip in ("0,0,0", "1,0,0", "0,1,0", "1,1,0") for core in (0, 1)
        )
    ]
    assert lines[11:] == [
        "",
        "float32 products are those of this machine's CPU. A TPU rounds their operands to",
        'bfloat16; tpu.connect(..., numerics="tpu") does so here.',
    ]


def test_a_setting_that_names_no_tpu_is_told():
    run = anytpu("devices", TPU_NAME="my-tpu")
    assert run.returncode == 0
    assert (
        "Tried before, and not found:\n"
        '  TPU_NAME  \'my-tpu\' is not the name of a slice such as "v2-8", nor "local", nor\n'
        "            the address of an anytpu worker\n"
    ) in run.stdout


def test_no_colours_in_a_pipe():
    assert "\x1b" not in anytpu("devices", "--tpu", "virtual").stdout
