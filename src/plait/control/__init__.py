"""The controller: events in, commands out; no clock, thread, socket, file or GPU.

Start at `controller.Controller.handle`.
"""
