"""Layer compositor: named layers with typed dependencies, a lifecycle and a serialisable session snapshot.

``agenton.layers`` is what a layer author needs, ``agenton.compositor`` what runs a stack of layers. This root exports
nothing. No async library is imported anywhere in the package: hooks and resource contexts are awaited plainly, and
the caller decides about scopes, shields and deadlines (see ``Compositor.enter``).
"""
