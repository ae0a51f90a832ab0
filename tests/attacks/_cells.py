"""Attack cells: what each tries, as the body of a function.

A body that returns has succeeded; one that raises was stopped. `T` holds the targets that the
suite has set up: paths, addresses and processes outside of the session. They run where nothing
stops them, too: no body harms anything but those targets, or what it made itself.
"""

from __future__ import annotations

LISTED = {
    "read_ssh": "return open(T['home'] + '/.ssh/id_rsa').read()",
    "read_hosts": "return open('/etc/hosts').read()",
    "read_shadow": "return open('/etc/shadow').read()",
    "write_bashrc": "open(T['home'] + '/.bashrc', 'a').write('echo taken')",
    "write_outside": """
        import pandas as pd
        pd.DataFrame({'a': [1]}).to_csv(T['outside'] + '/made.csv')""",
    "tcp_out": "import socket; socket.create_connection(T['tcp'], 2)",
    "docker_sock": """
        import socket
        socket.socket(socket.AF_UNIX).connect(T['unix'])""",
    "abstract_sock": """
        import socket
        socket.socket(socket.AF_UNIX).connect('\\0' + T['abstract'])""",
    "own_env": """
        found = [k for k, v in os.environ.items() if 'canary' in v]
        assert found or b'canary' in open('/proc/self/environ', 'rb').read()""",
    "host_environ": "assert b'canary' in open(f\"/proc/{T['host']}/environ\", 'rb').read()",
    "host_mem": "open(f\"/proc/{T['host']}/mem\", 'rb')",
    "ptrace": "syscall('ptrace', 0x4206, T['victim'], 0, 0)",
    "ptrace_host": "syscall('ptrace', 0x4206, T['host'], 0, 0)",
    "kill_host": "os.kill(T['host'], 0)",
    "fork_bomb": """
        import signal
        made = []
        try:
            for _ in range(300):
                pid = os.fork()
                if not pid:
                    signal.pause()
                made.append(pid)
        finally:
            for pid in made:
                os.kill(pid, 9)
                os.waitpid(pid, 0)""",
    "mem_bomb": "x = bytearray(3_000_000_000); return len(x)",
    "big_file": """
        block = bytes(1 << 20)
        with open('big', 'wb') as file:
            try:
                for _ in range(300):
                    file.write(block)
            finally:
                os.unlink('big')""",
    "userns": "in_child(lambda: syscall('unshare', 0x10000000))",
    "raise_limits": """
        import resource as r
        old = r.getrlimit(r.RLIMIT_CORE)
        r.setrlimit(r.RLIMIT_CORE, (1 << 20, 1 << 20))""",
}
"""Those that every release has to stop."""

MORE = {
    "list_home": "return os.listdir(T['home'])",
    "read_by_link": """
        os.symlink(T['secret'], 'link')
        try:
            return open('link').read()
        finally:
            os.unlink('link')""",
    "hard_link": "os.link(T['secret'], 'hard'); return open('hard').read()",
    "read_by_root_of_proc": "open('/proc/%d/root%s' % (T['host'], T['secret'])).read()",
    "read_by_own_root": "return open('/proc/self/root' + T['secret']).read()",
    "read_by_dots": "return open('../' * 30 + T['secret'].lstrip('/')).read()",
    "read_in_child": """
        import subprocess
        subprocess.run(['cat', T['secret']], check=True, capture_output=True)""",
    "read_by_libc": """
        import ctypes
        fd = ctypes.CDLL(None, use_errno=True).open(T['secret'].encode(), 0)
        if fd < 0: raise OSError(ctypes.get_errno(), 'open')""",
    "read_disk": "open(T['disk'], 'rb').read(512)",
    "read_snapshots": "return os.listdir(T['session'] + '/snapshots')",
    "write_record": "open(T['kernel'] + '/kernel.json', 'r+').close()",
    "write_beside": "open(T['kernel'] + '/other', 'w').close()",
    "write_packages": """
        open(T['packages'] + '/cave-attack', 'w').close()
        os.unlink(T['packages'] + '/cave-attack')""",
    "write_runtime": "os.rename(T['runtime'] + '/k-6', T['runtime'] + '/k-6')",
    "make_folder": "os.mkdir(T['outside'] + '/made')",
    "remove_file": "os.unlink(T['outside'] + '/gone')",
    "rename_file": "os.rename(T['outside'] + '/kept', T['outside'] + '/other')",
    "truncate_file": "os.truncate(T['outside'] + '/cut', 0)",
    "change_mode": "os.chmod(T['secret'], 0o777)",
    "shared_memory": "return open(T['shm']).read()",
    "core_pattern": "open('/proc/sys/kernel/core_pattern', 'r+').close()",
    "device": """
        import stat
        os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))
        os.unlink('disk')""",
    "udp_out": """
        import socket
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', T['tcp'])""",
    "listen": """
        import socket
        s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()""",
    "netlink": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "datagram_pair": """
        import socket
        a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        a.sendto(b'x', T['datagram'])""",
    "socket_in_child": """
        import subprocess, sys
        code = 'import socket; socket.create_connection(%r, 2)' % (tuple(T['tcp']),)
        subprocess.run([sys.executable, '-c', code], check=True, capture_output=True)""",
    "read_host_memory": """
        import ctypes
        buffer = ctypes.create_string_buffer(8)
        ours = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
        theirs = (ctypes.c_size_t * 2)(T['address'], 8)
        n = syscall('process_vm_readv', T['host'], ours, 1, theirs, 1, 0)
        assert buffer.raw == b'canary!!'""",
    "take_descriptor": """
        syscall('pidfd_getfd', os.pidfd_open(T['host']), 0, 0)""",
    "kill_keeper": "os.kill(T['keeper'], 0)",
    "stop_other": "os.kill(T['victim'], 19); os.kill(T['victim'], 18)",
    "key_ring": "syscall('keyctl', 0, -3, 1)",
    "bpf": """
        wanted = bytes([2, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1])
        syscall('bpf', 0, ctypes.create_string_buffer(wanted, 72), 72)""",
    "io_uring": "syscall('io_uring_setup', 1, ctypes.create_string_buffer(120))",
    "perf": """
        attr = ctypes.create_string_buffer(bytes([1, 0, 0, 0, 120]) + bytes(115))
        syscall('perf_event_open', attr, 0, -1, -1, 0)""",
    "mount": """
        os.makedirs('mounted', exist_ok=True)
        syscall('mount', b'x', b'mounted', b'tmpfs', 0, 0)
        syscall('umount2', b'mounted', 0)""",
    "chroot": "in_child(lambda: os.chroot('.'))",
    "become_root": "os.setresuid(0, 0, 0); return open('/etc/shadow').read()",
    "new_file_system": "syscall('fsopen', b'tmpfs', 0)",
    "namespace_by_clone": """
        pid = syscall('clone', 0x10000000 | 17, 0, 0, 0, 0)
        if not pid: ctypes.CDLL(None)._exit(0)
        os.waitpid(pid, 0)""",
}
"""Others, by other routes."""

HOSTS = {
    "other_port": "import socket; socket.create_connection(T['tcp'], 2)",
    "other_address": "import socket; socket.create_connection(T['elsewhere'], 2)",
    "other_by_ipv6": """
        import socket
        socket.create_connection(('::ffff:127.0.0.1', T['tcp'][1]), 2)""",
    "dns": """
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        s.sendto(b'canary', T['udp'])""",
    "dns_by_tcp": """
        import socket
        s = socket.socket(); s.settimeout(2); s.connect(T['tcp']); s.send(b'canary')""",
    "raw": "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "netlink_too": "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "fast_open": """
        import socket
        socket.socket().sendto(b'x', 0x20000000, T['tcp'])""",
    "fast_open_too": """
        import socket
        socket.socket().sendmsg([b'x'], [], 0x20000000, T['tcp'])""",
    "multipath": """
        import socket
        s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
        s.settimeout(2); s.connect(T['tcp'])""",
    "local_service": """
        import socket
        socket.socket(socket.AF_UNIX).connect(T['unix'])""",
    "local_name": """
        import socket
        socket.socket(socket.AF_UNIX).connect('\\0' + T['abstract'])""",
    "listen_there": """
        import socket
        s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()""",
    "listen_unbound": "import socket; socket.socket().listen()",
    "to_a_port": "assert tunnel('127.0.0.1:%d' % T['tcp'][1])",
    "to_localhost": "assert tunnel('localhost:%d' % T['tcp'][1])",
    "to_a_number": "assert tunnel('2130706433:%d' % T['tcp'][1])",
    "to_a_mapped": "assert tunnel('[::ffff:127.0.0.1]:%d' % T['tcp'][1])",
    "to_metadata": "assert tunnel('169.254.169.254:80')",
    "header_of_another": """
        assert b'evil.test' in ask(request('Host: evil.test'))""",
    "header_by_line_feed": """
        assert b'evil.test' in ask(request('X: y\\nHost: evil.test'))""",
    "second_request": """
        assert b'next.test' in ask(request('Host: x') + request('Host: next.test'))""",
    "file_by_proxy": "assert b'root' in ask('GET file:///etc/passwd HTTP/1.1\\r\\n\\r\\n')",
    "end_proxy": "os.kill(T['proxy'], 9)",
    "write_log": "open(T['kernel'] + '/network', 'a').close()",
    "enter_network": """
        syscall('setns', os.open('/proc/%d/ns/net' % T['host'], 0), 0x40000000)""",
}
"""Of a kernel that reaches one host, `T['named']`, by its proxy."""

TOOLS = """
import ctypes, errno, os
_libc = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {numbers!r}
def syscall(name, *args):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    done = _libc.syscall(ctypes.c_long(_NUMBERS[name]), *given)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return done
def in_child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        except OSError as exc:
            os._exit(exc.errno)
        os._exit(0)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))
def attempt(body):
    try:
        body()
    except BaseException as exc:
        known = errno.errorcode.get(getattr(exc, 'errno', None) or 0, '')
        return 'stopped ' + (known or type(exc).__name__)
    return 'open'
def request(*lines):
    return '\\r\\n'.join(['GET http://%s:%d/ HTTP/1.1' % tuple(T['named']), *lines, '', ''])
def ask(text):
    proxy = os.environ.get('HTTP_PROXY')
    at = proxy.rpartition('/')[2].split(':') if proxy else T['named']
    return all_of((at[0], int(at[1])), text)
def all_of(at, text):
    import socket
    with socket.create_connection(at, 5) as client:
        client.settimeout(5)
        client.sendall(text.encode())
        said = b''
        try:
            while part := client.recv(65536):
                said += part
        except OSError:
            pass
    return said
def tunnel(place):
    host, _, port = place.rpartition(':')
    if not os.environ.get('HTTP_PROXY'):
        import socket
        socket.create_connection((host.strip('[]'), int(port)), 2)
        return True
    return b' 200 ' in ask(f'CONNECT {{place}} HTTP/1.1\\r\\n\\r\\n').split(b'\\r\\n')[0]
T = {targets!r}
"""
