"""The kernel's half of snapshots: the namespace as an image, and back.

`roots` lists what there is to keep; `groups` cuts it where nothing mutable is shared;
`pickler` writes a group and `reader` reads it; `rules` says how kinds of objects go that
pickle does not carry as they are; `take` makes an image and `load` comes back to one.
"""
