"""How the compiler treats parts of kernels: it neither optimises them nor makes machine code, their kernels do both.

Numba does all of that for each function, and again for its copy in each function that calls it. A part is never called
but by kernels, so once is enough: the optimiser sees the whole of a kernel. That takes a third less time for the
packet simulator, and its machine code is no slower. Only `plait.core.jit` uses this module.

Named tuples of arrays go from part to part as a `Reference`: their fields are read where they are used.
"""

from __future__ import annotations

from typing import Any

from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import cgutils, codegen, compiler, imputils, typed_passes, types
from numba.core.compiler_machinery import register_pass
from numba.core.datamodel import models
from numba.core.typing import templates
from numba.extending import lower_builtin, register_model, type_callable


class _PartLibrary(codegen.JITCodeLibrary):
    """Lowered code of a part, which others link."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Leave it to the kernel."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(typed_passes.NativeLowering):
    """Lowering into a `_PartLibrary`, whose function callers find as if it had an address."""

    _name = "plait_part_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        state.flags.no_compile = False
        lowered = state["cr"]
        names = (lowered.fndesc.lookup_module(), lowered.fndesc.qualname.rpartition(".")[2], "a part of kernels")
        handle = _dynfunc.make_function(*names, 0, lowered.env, (state.library,))
        state.targetctx.insert_user_function(handle, lowered.fndesc, [state.library])
        state["cr"] = lowered._replace(cfunc=handle)
        return True


class _KernelLibrary(codegen.JITCodeLibrary):
    """Code of a kernel with that of its parts, optimised together, once: Numba's first round is for references."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)


@register_pass(mutates_CFG=True, analysis_only=False)
class _KernelLowering(typed_passes.NativeLowering):
    _name = "plait_kernel_lowering"

    def run_pass(self, state: Any) -> bool:
        state.library = _KernelLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


def _passes(state: Any, lowering: type) -> list[Any]:
    """The steps of the default compiler with another lowering to machine code."""
    passes = compiler.DefaultPassBuilder.define_nopython_pipeline(state)
    native = typed_passes.NativeLowering
    passes.passes = [(lowering if one is native else one, why) for one, why in passes.passes]
    passes._finalized = False
    passes.finalize()
    return [passes]


class PartCompiler(compiler.CompilerBase):
    """Numba's compiler for parts of kernels."""

    def define_pipelines(self) -> list[Any]:
        return _passes(self.state, _PartLowering)


class KernelCompiler(compiler.CompilerBase):
    """Numba's compiler for kernels without references."""

    def define_pipelines(self) -> list[Any]:
        return _passes(self.state, _KernelLowering)


def supported() -> bool:
    """Whether this version of Numba has what parts need."""
    library = codegen.JITCodeLibrary
    needed = ("_optimize_functions", "_optimize_final_module", "_finalize_final_module")
    return all(hasattr(library, name) for name in needed) and hasattr(_dynfunc, "make_function")


class Reference(types.Type):
    """The address of a named tuple in the frame of a kernel."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"Reference({target})")


@register_model(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Reference) -> None:
        super().__init__(dmm, fe_type, dmm.lookup(fe_type.target).get_value_type().as_pointer())


def _seen(field: types.Type) -> types.Type:
    """The type of a field of a named tuple that is referred to."""
    return Reference(field) if isinstance(field, types.BaseNamedTuple) else field


@templates.infer_getattr
class _ReferenceFields(templates.AttributeTemplate):
    key = Reference

    def generic_resolve(self, typ: Any, attr: str) -> Any:  # type: ignore[override]
        fields = typ.target.fields
        return _seen(typ.target.types[fields.index(attr)]) if attr in fields else None


@imputils.lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, reference: Reference, address: Any, name: str) -> Any:
    at = reference.target.fields.index(name)
    field, inner = reference.target.types[at], cgutils.gep_inbounds(builder, address, 0, at)
    if isinstance(field, types.BaseNamedTuple):
        return inner
    return imputils.impl_ret_borrowed(context, builder, field, builder.load(inner))


def refer(function: Any) -> None:
    """Let `function(named_tuple)`, called in a kernel, return a reference to a copy in the kernel's frame."""

    @type_callable(function)
    def typed(context: Any) -> Any:
        return lambda value: value if isinstance(value, Reference) else Reference(value)

    @lower_builtin(function, types.BaseNamedTuple)  # type: ignore[untyped-decorator]
    def lowered(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(builder, arguments[0])

    @lower_builtin(function, Reference)  # type: ignore[untyped-decorator]
    def unchanged(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return arguments[0]
