"""What runs inside the kernel process: a subclass of ipykernel's kernel.

It is started as a folder (`PYTHON .../inkernel -f kernel.json --cave SETTINGS`) and loads
itself as the package `_cave_kernel`. It imports the standard library, ipykernel, dill and
what the user's environment happens to hold; nothing of the rest of cave. Started without
`--cave` (by JupyterLab, say) it is an ordinary kernel.

The messages that it knows beside Jupyter's own
-----------------------------------------------
Every request of the host has `metadata["cave"] = {"lease": N}`; the highest N seen is kept
and lower ones get `{"status": "error", "ename": "LeaseLost"}`. Requests without it come
from foreign clients: what would run code is refused (`ename` "NotAttached") until
`cave_admit_request`. Errors carry `ename` and `evalue`.

shell channel (main thread, one after the other, behind running cells)
    execute_request         metadata.cave also has `cell`, the number the host gave it; the
                            message id is `cave:CELL:RANDOM`, so that every output tells
                            its cell through its parent header
    cave_put_request        kind, names, token or None, layout [[offset, size] ...]; the parts
                            (header, then the values' buffers) are the message's buffers, or
                            lie in the file given through the door under `token`. Reply: variables
    cave_get_request        name, allow_pickle, inline. Reply: kind, token, layout; buffers as
                            above. `inline` (the door is gone): all of them in frames of 32 MB,
                            cut by the sizes in layout
    cave_delete_request     names
    cave_variables_request  Reply: variables
    cave_skills_request     skills (declarations: exactly these from now on), session, token and
                            layout; the parts are a pickle of the functions that run here
    cave_snapshot_request   id, base, verify, background, inline, again (only if nothing has run
                            since the image `id`). Reply: id, base (None: all is given), chunk,
                            python, packages, pause, missed, tracking and why, groups (each id,
                            names, same, checked, definitions, uses, notes, and unless `same` its
                            stream and buffers [id, size, base, [[offset, part] ...]]), layout
                            [[offset, size] ...] of the parts in one blob, which is the message's
                            buffers or the file behind token; `filling`: behind token are the file
                            and a pipe, on which a child says `+` when the file is complete
    cave_restore_request    id, chunk, keep, groups (id, names, definitions, stream, buffers
                            [id, size, [[file, offset, length] ...]]), lost, cells, layout and
                            token of the streams, tokens of the files. Reply: notes; or stale,
                            the groups that cannot stay: then nothing was changed

control channel (its own thread, also while a cell runs)
    cave_hello_request      raises the fence to the request's lease. Reply: pid, python,
                            executable, packages, and what cave_status gives
    cave_status_request     Reply: number (of the newest IOPub message), lost (messages that
                            the spool could not take),
                            lease, admitted, running {cell, msg_id, statement, of, line}
    cave_interrupt_request  cell (None: any); needs no lease. SIGINT that hits this cell or none.
                            Reply: msg_id of the cell that is stopped, None when it does not run.
                            `image`: SECONDS instead stops what an image has been writing or
                            reading for that long; `child` the process that fills a file
    cave_admit_request      foreign clients may run cells from now on
    cave_end_request        finish: run atexit functions, drop the namespace, exit with 0

stdin channel (the shell channel's thread; only of the host that served last, under its lease)
    cave_serve_request      host: calls come to me from now on, those that wait as well; `inline`:
                            the door is gone
    cave_call               kernel: call (id), phase, skill, hash, cell, lane, ordinal, kind `safe`,
                            token and layout; the parts are the arguments, by name. Phases: `call`:
                            the host is to run it; `begin`: a skill of the kernel wants leave;
                            `end`: it has run under key and attempt: status ok and its value, or
                            error {name, message, traceback, bases}, `ran` False if it did not.
                            declaration: of a skill that a cell has defined
    cave_call_reply         host: call, phase, status ok and a value or none, error {name, message},
                            or go (key, attempt): run it. Answers nobody waits for are dropped
    cave_call_note          host: call, phase, text: output of the cell that waits
    cave_call_visit         host: call, phase, visit, op get (name) or put (a parcel as of
                            cave_put); the code that waits answers by cave_call_visited: call,
                            phase, visit, status, and a value or ename and evalue
    cave_call_cancel        kernel: call: nobody waits for it any more
    input_request, input_reply   as Jupyter's, by the identity of the client that runs the cell

IOPub
    every message has its number (1, 2, 3 ...) as one more identity frame after the topic
    cave_reply              the end of a cell, after its outputs and before its idle status:
                            cell (None: foreign), status, ename, evalue, traceback, seconds,
                            interrupted, delta, bound, capped (more is in the spool)

The door (SOCK_SEQPACKET, one JSON request and its answer per connection)
    {"op": "give", "token": T, "count": N} with N descriptors    the kernel keeps them under T
    {"op": "take", "token": T}                                   answers with the descriptors;
                                          those of a call that waits can be taken again
"""
