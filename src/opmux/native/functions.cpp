// Launches ops with gradients without Python: replaces `apply` of an op's autograd.Function.
//
// A call with the key of a recorded call is launched from C++, and autograd records a C++ node; its backward is
// launched in the same way. All other calls, and backwards under create_graph=True, go to the Function's own `apply`
// and `backward`. See functions.py.

#include <Python.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/object_ptr.h>

#include <string>

#define OPMUX_LAUNCHES
#include "launches.h"

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using NodePtr = decltype(Edge::function);  // std::shared_ptr<Node>; since torch 2.12 c10::intrusive_ptr<Node>

constexpr int kMostArguments = 16;

// A value that the backward takes, or that the forward saves for it.
struct Source {
  enum Kind : int32_t { kGrad, kArgument, kShape, kResult, kNumber };
  int32_t kind;
  int32_t index;
};

// One op: the relation between its results, gradients and saved values.
struct Op {
  std::string name;
  std::vector<int32_t> edges;  // the edge of each argument in the graph; -1: the argument is never a tensor
  std::vector<Source> saves;
  std::vector<Source> sources;   // the arguments of the backward
  std::vector<int32_t> targets;  // for each result of the backward, the argument whose gradient it is
  std::vector<int32_t> differentiable;
  int32_t device;  // c10::DeviceType
  PyObject* apply;
  PyObject* record;
  PyObject* backward;
  PyObject* record_backward;
  LaunchTable forward_table;
  LaunchTable backward_table;

  int edge_count() const { return *std::max_element(edges.begin(), edges.end()) + 1; }
  bool has_one_gradient() const { return std::count(differentiable.begin(), differentiable.end(), 1) == 1; }
};

// The launches of a forward, and the data that its nodes need.
struct Forward final : LaunchRecord {
  ~Forward() override {
    if (saved_objects != nullptr && Py_IsInitialized() != 0) {
      pybind11::gil_scoped_acquire gil;
      Py_DECREF(saved_objects);
    }
  }

  PyObject* saved_objects = nullptr;  // `saved_objects` of the Function's context: the backward's pair, and non-tensors
  std::vector<at::Tensor> shapes;  // tensors of the same shape and dtype as the saved values of kind kShape
};

void add_argument(CallKey& call, const at::Tensor& t, int32_t device) {
  const auto keys = t.key_set();
  if (static_cast<int32_t>(t.device().type()) != device || t.unsafeGetTensorImpl()->is_wrapped_number() ||
      keys.has_any(c10::python_ks) || keys.has(DispatchKey::FuncTorchGradWrapper) ||
      keys.has(DispatchKey::FuncTorchBatched)) {
    call.ok = false;
    return;
  }
  call.argument(t);
}

// Numbers, strings and sizes. The key includes their type: an op may treat 1, 1.0 and True differently.
void add_argument(CallKey& call, PyObject* value) {
  if (value == Py_None || PyBool_Check(value) || THPDtype_Check(value)) {  // singletons: the address is the value
    call.add(reinterpret_cast<uint64_t>(value));
  } else if (PyFloat_CheckExact(value)) {
    call.add(5);
    call.number(PyFloat_AS_DOUBLE(value));
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    call.add(6);
    call.add(PyLong_AsLongLongAndOverflow(value, &overflow));
    call.ok = call.ok && overflow == 0;
  } else if (PyUnicode_CheckExact(value)) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == nullptr) {
      PyErr_Clear();
      call.ok = false;
      return;
    }
    call.add(8);
    call.argument(std::string_view(text, size));
  } else if (PyTuple_Check(value) || PyList_CheckExact(value)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    call.add(7 | static_cast<uint64_t>(size) << 8);
    for (Py_ssize_t i = 0; i < size && call.ok; ++i) {
      PyObject* one = PySequence_Fast_GET_ITEM(value, i);
      call.ok = !PyTuple_Check(one) && !PyList_Check(one);
      add_argument(call, one);
    }
  } else {
    call.ok = false;
  }
}

void add_settings(CallKey& call) {
  call.add(at::globalContext().deterministicAlgorithms());
  call.add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
}

DispatchKey key_of(const CallKey& call) {
  const at::Tensor& first = *call.tensor[0];
  return c10::computeDispatchKey(first.scalar_type(), at::kStrided, first.device());
}

[[noreturn]] void raise_python() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PyObject* wrapped(const at::Tensor& t) {
  if (!t.defined()) {
    Py_RETURN_NONE;
  }
  return THPVariable_Wrap(t);
}

// ---- the backward ----------------------------------------------------------------------------------------------------

void add_backward(CallKey& call, const Op& op, uint64_t forward, const at::Tensor* const* values) {
  add_settings(call);
  call.size(forward);  // stands for the forward's numbers; added as a size, because it differs between sizes
  for (size_t i = 0; i < op.sources.size(); ++i) {
    if (op.sources[i].kind == Source::kNumber) {
      continue;
    }
    if (values[i] == nullptr || !values[i]->defined()) {
      call.add(1);
    } else {
      add_argument(call, *values[i], op.device);
    }
  }
}

struct Gradient final : Node {
  Gradient(Op* op, std::shared_ptr<const Forward> forward) : op(op), forward(std::move(forward)) {}

  std::string name() const override { return op->name + "Backward"; }

  void release_variables() override {
    std::lock_guard<std::mutex> guard(mutex_);
    for (auto& variable : saved) {
      variable.reset_data();
    }
  }

  variable_list apply(variable_list&& grads) override {
    if (op->has_one_gradient()) {
      const auto only = std::find(op->differentiable.begin(), op->differentiable.end(), 1);
      if (!grads[only - op->differentiable.begin()].defined()) {
        return variable_list(num_outputs());
      }
    } else {
      for (size_t i = 0; i < grads.size(); ++i) {
        if (op->differentiable[i] && !grads[i].defined()) {
          grads[i] = input_metadata(i).zeros_like();
        }
      }
    }
    if (std::none_of(op->targets.begin(), op->targets.end(), [&](int32_t i) { return is_needed(i); })) {
      return variable_list(num_outputs());
    }
    variable_list values = unpacked();
    if (at::GradMode::is_enabled() || !launching.load(std::memory_order_relaxed)) {
      return by_python(op->backward, values, grads);
    }
    const at::Tensor* arguments[kMostArguments];
    for (size_t i = 0; i < op->sources.size(); ++i) {
      arguments[i] = value_of(op->sources[i], values, grads);
    }
    CallKey call;
    add_backward(call, *op, forward->id, arguments);
    if (!call.ok || call.tensors == 0) {
      return by_python(op->backward, values, grads);
    }
    const uint64_t hash = call.hash();
    bool known = false;
    {
      const Reading reading;
      if (const LaunchRecord* record = op->backward_table.find(call, hash)) {
        Results results;
        if (run(*record, call, key_of(call), results)) {
          variable_list result(num_outputs());
          for (size_t i = 0; i < op->targets.size(); ++i) {
            const int32_t edge = op->edges[op->targets[i]];
            if (task_should_compute_output(edge)) {
              result[edge] = std::move(results[i]);
            }
          }
          return result;
        }
        known = true;
      }
    }
    const bool records = !known && op->backward_table.should_record(call, hash);
    return by_python(records ? op->record_backward : op->backward, values, grads);
  }

  // Compiled autograd traces the backward with fake tensors, so Python's backward runs.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(forward->id);
    args.collect(saved, true);
  }

  variable_list apply_with_saved(const variable_list& grads,
                                 torch::dynamo::autograd::SwapSavedVariables& swapped) override {
    swapped.before(saved);
    variable_list result = apply(variable_list(grads));
    swapped.after(saved);
    return result;
  }

  bool is_needed(int32_t argument) const { return task_should_compute_output(op->edges[argument]); }

  variable_list unpacked() {
    std::lock_guard<std::mutex> guard(mutex_);
    variable_list values;
    values.reserve(saved.size());
    for (const auto& variable : saved) {
      values.push_back(variable.unpack(getptr()));
    }
    return values;
  }

  const at::Tensor* value_of(const Source& source, const variable_list& values, const variable_list& grads) const {
    if (source.kind == Source::kGrad) {
      return &grads[source.index];
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (op->saves[i].kind == source.kind && op->saves[i].index == source.index) {
        return &values[i];
      }
    }
    return nullptr;
  }

  // Calls backward(saved tensors, saved objects, needed, id of the forward, gradients). It returns the results of the
  // Function's own backward.
  variable_list by_python(PyObject* function, const variable_list& values, const variable_list& grads) const {
    pybind11::gil_scoped_acquire gil;
    const auto tuple = [](size_t size, auto&& item) {
      THPObjectPtr created(PyTuple_New(static_cast<Py_ssize_t>(size)));
      for (size_t i = 0; created && i < size; ++i) {
        PyTuple_SET_ITEM(created.get(), static_cast<Py_ssize_t>(i), item(i));
      }
      return created;
    };
    const auto tensors = tuple(values.size(), [&](size_t i) { return wrapped(values[i]); });
    const auto grads_tuple = tuple(grads.size(), [&](size_t i) { return wrapped(grads[i]); });
    const auto needed = tuple(1 + op->edges.size(), [&](size_t i) {
      return PyBool_FromLong(i > 0 && op->edges[i - 1] >= 0 && task_should_compute_output(op->edges[i - 1]));
    });
    THPObjectPtr id(PyLong_FromUnsignedLongLong(forward->id));
    THPObjectPtr returned(PyObject_CallFunctionObjArgs(function, tensors.get(), forward->saved_objects, needed.get(),
                                                       id.get(), grads_tuple.get(), nullptr));
    if (!returned) {
      raise_python();
    }
    variable_list result(num_outputs());
    for (size_t i = 0; i < op->edges.size(); ++i) {
      PyObject* one = PyTuple_GET_ITEM(returned.get(), static_cast<Py_ssize_t>(i) + 1);
      if (op->edges[i] >= 0 && one != Py_None) {
        TORCH_CHECK_TYPE(THPVariable_Check(one), name(), " must return tensors or None");
        result[op->edges[i]] = THPVariable_Unpack(one);
      }
    }
    return result;
  }

  Op* op;
  const std::shared_ptr<const Forward> forward;
  std::vector<SavedVariable> saved;
};

// deleteNode is found by argument-dependent lookup: torch versions with intrusive nodes do not have it.
template <class Pointer, class Made, class... Args>
Pointer new_node(Args... args) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return Pointer(new Made(std::move(args)...), [](Made* one) { deleteNode(one); });
  } else {
    return c10::make_intrusive<Made>(std::move(args)...);
  }
}

// ---- the forward -----------------------------------------------------------------------------------------------------

struct ForwardArguments {
  CallKey call;
  const at::Tensor* tensor[kMostArguments];  // nullptr: not a tensor
};

void add_forward(ForwardArguments& arguments, const Op& op, PyObject* const* args) {
  add_settings(arguments.call);
  for (size_t i = 0; i < op.edges.size() && arguments.call.ok; ++i) {
    if (THPVariable_Check(args[i])) {
      arguments.tensor[i] = &THPVariable_Unpack(args[i]);
      add_argument(arguments.call, *arguments.tensor[i], op.device);
      arguments.call.ok = arguments.call.ok && op.edges[i] >= 0;
    } else {
      arguments.tensor[i] = nullptr;
      add_argument(arguments.call, args[i]);
    }
  }
}

PyObject* recorded_in_graph(Op& op, const Forward& forward, const ForwardArguments& arguments, Results& results) {
  const NodePtr owner =
      new_node<NodePtr, Gradient>(&op, std::static_pointer_cast<const Forward>(forward.shared_from_this()));
  auto* node = static_cast<Gradient*>(owner.get());
  torch::autograd::edge_list edges(op.edge_count());
  for (size_t i = 0; i < op.edges.size(); ++i) {
    if (arguments.tensor[i] != nullptr) {
      edges[op.edges[i]] = torch::autograd::impl::gradient_edge(*arguments.tensor[i]);
    }
  }
  node->set_next_edges(std::move(edges));
  for (size_t i = 0; i < op.differentiable.size(); ++i) {
    const uint32_t number = node->add_input_metadata(results[i]);
    if (op.differentiable[i]) {
      torch::autograd::impl::set_gradient_edge(results[i], {owner, number});
    }
  }
  node->saved.reserve(op.saves.size());
  size_t shapes = 0;
  for (const auto& [kind, index] : op.saves) {
    if (kind == Source::kResult) {
      node->saved.emplace_back(results[index], op.differentiable[index] != 0);
    } else if (kind == Source::kShape) {
      node->saved.emplace_back(forward.shapes[shapes++], false);
    } else if (arguments.tensor[index] != nullptr) {
      node->saved.emplace_back(*arguments.tensor[index], false);
    } else {
      node->saved.emplace_back();
    }
  }
  if (op.differentiable.size() == 1) {
    return THPVariable_Wrap(std::move(results[0]));
  }
  THPObjectPtr all(PyTuple_New(static_cast<Py_ssize_t>(op.differentiable.size())));
  for (size_t i = 0; all && i < op.differentiable.size(); ++i) {
    PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), THPVariable_Wrap(std::move(results[i])));
  }
  return all.release();
}

// apply(run, *arguments), with the signature of the Function's own `apply`.
PyObject* apply(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Op& op = *static_cast<Op*>(PyCapsule_GetPointer(self, nullptr));
  // torch.jit.trace records a Function by itself.
  const bool traced = c10::impl::tls_is_dispatch_key_included(DispatchKey::Tracer);
  if (launching.load(std::memory_order_relaxed) && !traced && count == static_cast<Py_ssize_t>(op.edges.size()) + 1) {
    ForwardArguments arguments;
    add_forward(arguments, op, args + 1);
    const CallKey& call = arguments.call;
    if (call.ok && call.tensors > 0) {
      const uint64_t hash = call.hash();
      bool known = false;
      {
        const Reading reading;
        if (const LaunchRecord* record = op.forward_table.find(call, hash)) {
          RECORD_FUNCTION(op.name, std::vector<c10::IValue>(), at::sequence_number::peek());  // as torch does
          Results results;
          bool done = false;
          {
            pybind11::gil_scoped_release no_gil;  // the driver waits if its queue is full
            done = run(*record, call, key_of(call), results);
          }
          if (done) {
            return recorded_in_graph(op, static_cast<const Forward&>(*record), arguments, results);
          }
          known = true;
        }
      }
      if (!known && op.forward_table.should_record(call, hash)) {
        return PyObject_Vectorcall(op.record, args, static_cast<size_t>(count), nullptr);
      }
    }
  }
  return PyObject_Vectorcall(op.apply, args, static_cast<size_t>(count), nullptr);
  END_HANDLE_TH_ERRORS
}

PyMethodDef method = {"apply", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&apply)), METH_FASTCALL,
                      nullptr};

// The tensors of a tuple; false if the tuple contains anything else.
bool tensors_of(PyObject* tuple, std::vector<const at::Tensor*>& into) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* one = PyTuple_GET_ITEM(tuple, i);
    if (!THPVariable_Check(one)) {
      return false;
    }
    into.push_back(&THPVariable_Unpack(one));
  }
  return true;
}

std::vector<int32_t> numbers(PyObject* tuple) {
  std::vector<int32_t> values;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    values.push_back(static_cast<int32_t>(PyLong_AsLong(PyTuple_GET_ITEM(tuple, i))));
  }
  return values;
}

std::vector<Source> sources(PyObject* tuple) {
  const auto flat = numbers(tuple);
  std::vector<Source> values;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    values.push_back({flat[i], flat[i + 1]});
  }
  return values;
}

template <typename F>
int guarded(F&& run) {  // called from Python, so no C++ exception may escape
  try {
    return run();
  } catch (const std::exception&) {
    return 0;
  }
}

Op& op_of(PyObject* function) {
  return *static_cast<Op*>(PyCapsule_GetPointer(PyCFunction_GET_SELF(function), nullptr));
}

}  // namespace

#pragma GCC visibility push(default)  // hidden otherwise, like the types of launches.h
extern "C" {

// Creates `apply` of an op. Sources are pairs (kind, index) in one tuple. The op is never freed: nodes refer to it.
PyObject* opmux_functions_new(const char* name, PyObject* edges, PyObject* saves, PyObject* takes, PyObject* targets,
                              PyObject* differentiable, int device, PyObject* functions) {
  HANDLE_TH_ERRORS
  auto* op = new Op{name,
                    numbers(edges),
                    sources(saves),
                    sources(takes),
                    numbers(targets),
                    numbers(differentiable),
                    device,
                    PyTuple_GET_ITEM(functions, 0),
                    PyTuple_GET_ITEM(functions, 1),
                    PyTuple_GET_ITEM(functions, 2),
                    PyTuple_GET_ITEM(functions, 3),
                    {},
                    {}};
  Py_INCREF(functions);
  TORCH_CHECK(op->edges.size() <= kMostArguments && op->sources.size() <= kMostArguments, name, " has too many arguments");
  THPObjectPtr self(PyCapsule_New(op, nullptr, nullptr));
  return self ? PyCFunction_New(&method, self.get()) : nullptr;
  END_HANDLE_TH_ERRORS
}

uint64_t opmux_functions_epoch() { return epoch.load(std::memory_order_acquire); }

// Stores what a forward has launched; `since` is the epoch at its start. Returns whether a launch record was built.
int opmux_functions_keep(PyObject* function, PyObject* args, PyObject* results, const Recorded* recorded, uint64_t since,
                         PyObject* saved_objects, PyObject* shapes) {
  return guarded([&] {
    Op& op = op_of(function);
    ForwardArguments arguments;
    add_forward(arguments, op, &PyTuple_GET_ITEM(args, 0));
    std::vector<const at::Tensor*> outs;
    std::vector<const at::Tensor*> samples;
    auto record = std::make_shared<Forward>();
    const CallKey& call = arguments.call;
    if (!call.ok || call.tensors == 0 || !tensors_of(results, outs) || !tensors_of(shapes, samples) ||
        !build(*record, call, *recorded, outs.data(), static_cast<int>(outs.size()), false)) {
      return 0;
    }
    for (const at::Tensor* sample : samples) {
      record->shapes.push_back(*sample);
    }
    record->epoch = since;
    record->saved_objects = Py_NewRef(saved_objects);
    op.forward_table.keep(std::move(record), call.hash());
    op.forward_table.with_other_sizes(call).times.fetch_add(1, std::memory_order_relaxed);
    return 1;
  });
}

// The same for a backward. The launch record is for nodes of the forward with this id.
int opmux_functions_keep_backward(PyObject* function, uint64_t forward, PyObject* args, PyObject* results,
                                  const Recorded* recorded, uint64_t since) {
  return guarded([&] {
    Op& op = op_of(function);
    const at::Tensor* values[kMostArguments];
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
      PyObject* value = PyTuple_GET_ITEM(args, i);
      values[i] = THPVariable_Check(value) ? &THPVariable_Unpack(value) : nullptr;
    }
    CallKey call;
    add_backward(call, op, forward, values);
    std::vector<const at::Tensor*> outs;
    auto record = std::make_shared<LaunchRecord>();
    if (!call.ok || call.tensors == 0 || !tensors_of(results, outs) || outs.size() != op.targets.size() ||
        !build(*record, call, *recorded, outs.data(), static_cast<int>(outs.size()), false)) {
      return 0;
    }
    record->epoch = since;
    op.backward_table.keep(std::move(record), call.hash());
    op.backward_table.with_other_sizes(call).times.fetch_add(1, std::memory_order_relaxed);
    return 1;
  });
}

}  // extern "C"
#pragma GCC visibility pop
