"""Files of sets: one that is stored here still opens, and replacing one whatever happens to the process."""

from __future__ import annotations

import base64
import random
import signal
import subprocess
import textwrap
import time
import zlib
from pathlib import Path

from commands import Command
from token_trie import TokenTrie

# A set of red, green and blue, as version 1 of the format writes it.
SET = (
    "c-kw;&rZ!NDavGIU|?WmVrFsRU;qPV2*tnzrCHEuHU?Ax<MTslZU*cCWNr(PV1)7=pau#+`6<iy%kK=^8Q6LH#^j*qQ`f#znX2{1"
    "zby1l&#kKu{0cf6pz0l<>hmnT6&P|d>Yqtix!Bf=W=i=s?u&msx9fE8yzeWN8^sTxsSmVw=lJ?1qCI@eZ^ir<kJp5HtXb6Owe`oI"
    "yZZmmbrw1>u%fyrJ7474dNp;4>>o?x+<njIeg1Z?aeWx?io!R6uhSU|S30nwns0x2cKS-r&$Dv>35MR=t~^!k*teB08NKIb2JbNE"
    "{lopD0ZskarGK3+W+@n`&v>7AnREJVX9inkg_|E<yqaOSQa$pw_W?BZMKAt~2s2f99gv&G)0DEuvf91sPn_SaM=b%Fg(|-nzlTKx"
    "%>9v9r{zprUw7*2$x9P^Q=2X_Z8}z;T^6^f>yUHdYX8am9MB^2@rEN#Gycek%=-Q1#LWDiD(dSTpQOy5?6YL*OzDcC9ia|r=C^KF"
    "dHn6sT{Vwo(<0-xnQt<=^XBO3a;~V~A0{O`zP`VufeqFD7e1@B9V{rj)tT&MzcJa@qb%ghv6eW073R3hCE6Rb{~tgzpRN9z_WbwT"
    "E`JXY`|mL)wVTm<{`s>H{Yu^UBv{^*dfCswPMZ74RS(S;4C_M+zAkL!uKM1y-upOL8b9w>Ij3DeWqqG+GU|Qs!uF2?iRv3jRDXa("
    "^)Q8!Q1$!oEn>b@Zo6*U9pm-)c=UYFT+%%LI(oK++O#aYT`Avms&p1>y|<hb>+$Nco%uEUojx~@J^n7Y?ft4NTi1(C-&TyCpV^V}"
    "GZO>(fRTYRz(uA$76$47U50@L++^xwrqEsvD!IRt%!nvTO<_ncN=?mUNXjWqWf%n{f@-D2oXo`H)M6#8=vW=4vi#)4Bqb{)rCK8O"
    "0|30`Y+C"
)


def test_a_file_that_an_earlier_release_wrote_opens(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    path.write_bytes(zlib.decompress(base64.b85decode(SET)))
    assert [(leaf.name, leaf.tokens) for leaf in TokenTrie.open(path, verify=True)] == [
        ("red", (7, 1)),
        ("green", (7, 2, 3)),
        ("blue", (900,)),
    ]


CHILD = textwrap.dedent("""
    import random, sys
    from token_trie import TokenTrie
    path, seed = sys.argv[1], int(sys.argv[2])
    rng = random.Random(seed)
    sets = [TokenTrie.from_sequences({f"{i}-{n}": [i, n] for n in range(1000)}) for i in range(4)]
    print("made", flush=True)
    while True:
        rng.choice(sets).save(path)
""")


def test_killed_at_any_moment_it_is_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "items.trie"
    TokenTrie.from_sequences({f"0-{n}": [0, n] for n in range(1000)}).save(path)
    held = TokenTrie.open(path)
    rng = random.Random(5)
    for kill in range(4):
        with Command(["-c", CHILD, path, kill], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "made\n"
            time.sleep(rng.random() * 0.05)
            child.send_signal(signal.SIGKILL)
        names = TokenTrie.open(path, verify=True).names
        assert len(names) == 1000 == len({name.split("-")[1] for name in names})
        assert len({name.split("-")[0] for name in names}) == 1
    assert held.names == [f"0-{n}" for n in range(1000)], "who holds a set goes on with it"
