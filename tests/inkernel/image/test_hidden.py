"""State outside of the namespace, after the process that had it was killed."""

import timeit
from pathlib import Path
from typing import Any

import pytest

from tests import _inkernel
from tests.inkernel.image import _shells

KINDS = {
    "random": (
        """
        import random
        random.seed(5)
        random.gauss(0, 1)
        state = random.getstate()
        """,
        """
        import random
        assert random.getstate() == state
        """,
    ),
    "numpy's random": (
        """
        import numpy as np
        np.random.seed(3)
        np.random.randn()
        s1 = np.random.get_state()
        """,
        """
        assert np.random.get_state()[2:] == s1[2:] and (np.random.get_state()[1] == s1[1]).all()
        """,
    ),
    "numpy's options": (
        """
        np.set_printoptions(precision=2, suppress=True)
        np.seterr(divide='ignore')
        """,
        """
        assert repr(np.array([1.23456])) == 'array([1.23])' and np.geterr()['divide'] == 'ignore'
        """,
    ),
    "folder": (
        """
        import os
        os.makedirs('deep/er', exist_ok=True)
        os.chdir('deep/er')
        """,
        """
        import os
        assert os.getcwd().endswith('deep/er')
        """,
    ),
    "environment": (
        """
        os.environ['CASE_PLAIN'] = 'x'
        os.environ['CASE_GONE_KEY'] = 'secret-one'
        os.environ['CASE_HERE_TOKEN'] = 'secret-two'
        del os.environ['CASE_REMOVED']
        """,
        """
        assert os.environ['CASE_PLAIN'] == 'x' and 'CASE_REMOVED' not in os.environ
        assert os.environ['CASE_HERE_TOKEN'] == 'given anew' and 'CASE_GONE_KEY' not in os.environ
        assert [n for n in notes if n[0] == 'lost' and 'CASE_GONE_KEY' in n[3]]
        """,
    ),
    "path": (
        """
        import sys
        os.makedirs('lib', exist_ok=True)
        sys.path.insert(0, os.path.abspath('lib'))
        """,
        """
        import sys
        assert sys.path[0].endswith('lib')
        """,
    ),
    "limits": (
        """
        sys.setrecursionlimit(2345)
        """,
        """
        assert sys.getrecursionlimit() == 2345
        """,
    ),
    "warnings": (
        """
        import warnings
        warnings.filterwarnings('error', 'mine')
        """,
        """
        import warnings, pytest
        with pytest.raises(UserWarning):
            warnings.warn('mine')
        """,
    ),
    "decimal": (
        """
        import decimal
        decimal.getcontext().prec = 7
        """,
        """
        import decimal
        assert str(decimal.Decimal(1) / 3) == '0.3333333'
        """,
    ),
    "builtins": (
        """
        import builtins
        builtins.mine = [7]
        """,
        """
        assert mine == [7]
        """,
    ),
    "streams": (
        """
        out = open('out.txt', 'w')
        sys.stdout = out
        print('one')
        """,
        r"""
        assert sys.stdout is out
        print('two')
        out.flush()
        text = open('out.txt').read()
        assert text[:4] + text[-4:] == 'one\ntwo\n', text
        """,
    ),
    "signals": (
        """
        import signal

        def on_alarm(*_):
            fired.append(1)
        fired = []
        signal.signal(signal.SIGALRM, on_alarm)
        """,
        """
        import signal
        assert signal.getsignal(signal.SIGALRM) is on_alarm
        signal.raise_signal(signal.SIGALRM)
        assert fired == [1]
        """,
    ),
    "logging": (
        """
        import logging
        logging.basicConfig(filename='x.log', level='INFO', format='%(message)s')
        logging.getLogger('a.b').setLevel('ERROR')
        logging.info('one')
        """,
        r"""
        import logging
        logging.info('two')
        logging.getLogger('a.b').warning('no')
        assert open('x.log').read() == 'one\ntwo\n'
        """,
    ),
    "pandas": (
        """
        import pandas as pd
        pd.set_option('display.max_rows', 7)
        """,
        """
        assert pd.get_option('display.max_rows') == 7
        """,
    ),
    "matplotlib": (
        """
        import matplotlib.pyplot as plt
        plt.rcParams['lines.linewidth'] = 9
        one = plt.figure(5)
        plt.plot([1])
        two = plt.figure(3)
        plt.figure(5)
        """,
        """
        assert plt.rcParams['lines.linewidth'] == 9 and plt.get_fignums() == [3, 5]
        assert plt.gcf() is one and plt.figure(3) is two and (len(one.axes[0].lines) == 1)
        """,
    ),
    "threads and tasks": (
        """
        import threading
        never = threading.Event()
        w = threading.Thread(target=never.wait, name='worker', daemon=True)
        w.start()
        del w
        """,
        """
        assert [n for n in notes if n[0] == 'lost' and 'worker' in n[3]]
        """,
    ),
    "magics": (
        """
        from IPython.core.magic import register_line_magic

        @register_line_magic
        def twice(line):
            return line * 2
        del twice
        """,
        """
        assert get_ipython().run_line_magic('twice', 'ab') == 'abab'
        """,
    ),
    "extensions": (
        """
        get_ipython().run_line_magic('load_ext', 'autoreload')
        """,
        """
        assert 'autoreload' in str(get_ipython().extension_manager.loaded)
        """,
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return _shells.run(
        Path(tmp_path_factory.mktemp("hidden")),
        [cell for cell, _ in KINDS.values()],
        {name: check for name, (_, check) in KINDS.items()},
        env=({"CASE_REMOVED": "1"}, {"CASE_REMOVED": "1", "CASE_HERE_TOKEN": "given anew"}),
    )


@pytest.mark.parametrize("name", KINDS)
def test_hidden_state_comes_back(name: str, results: dict[str, str]) -> None:
    """Each kind of state outside of the namespace is as it was, or a note says why not."""
    assert not results[name], results[name]


def test_step_back_to_the_start(tmp_path: Path) -> None:
    """A snapshot of an untouched kernel undoes what cells did to hidden state since."""
    errors = _shells.run(
        tmp_path,
        [
            """
            x = 1
            """
        ],
        {
            "all": """
            import os, sys, warnings, logging, pandas as pd, numpy as np, builtins, signal
            assert not os.getcwd().endswith('sub') and 'ADDED' not in os.environ
            assert '/nowhere' not in sys.path and sys.getrecursionlimit() != 2345
            assert logging.getLogger('z').level == 0 and (not logging.root.handlers)
            assert pd.get_option('display.max_rows') == 60
            assert np.get_printoptions()['precision'] == 8
            assert not hasattr(builtins, 'mine') and 'y' not in globals() and (x == 1)
            assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
            import matplotlib.pyplot as plt
            assert plt.get_fignums() == []
            assert plt.rcParams['lines.linewidth'] == 1.5
            """
        },
        before=(
            """
            import os, sys, logging, pandas as pd, numpy as np, builtins, signal
            y = 1
            os.mkdir('sub')
            os.chdir('sub')
            os.environ['ADDED'] = '1'
            sys.path.append('/nowhere')
            sys.setrecursionlimit(2345)
            logging.getLogger('z').setLevel(10)
            logging.basicConfig(level=10)
            pd.set_option('display.max_rows', 7)
            builtins.mine = 1
            np.set_printoptions(precision=2)
            signal.signal(signal.SIGALRM, print)
            import matplotlib.pyplot as plt
            plt.figure()
            plt.rcParams['lines.linewidth'] = 9
            """,
        ),
    )
    assert not errors["all"], errors["all"]


def test_unchanged_state_is_the_same_and_cheap() -> None:
    """Capturing twice gives the same objects, and at once where nothing has changed."""
    hidden: Any = _inkernel.load("image.hidden")
    import numpy.random
    import pandas as pd

    assert numpy.random.get_state()
    assert pd.options
    one, two = hidden.capture(), hidden.capture()
    assert {name for name in one if not name.endswith(("streams", "logging", "builtins", "signals"))
            if one[name] is not two[name]} == set()  # fmt: skip
    assert min(timeit.repeat(hidden.capture, number=1, repeat=50)) < 0.01
