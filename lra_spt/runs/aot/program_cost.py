"""The data that one run of a compiled program moves, read from its optimised HLO text.

XLA's `cost_analysis` counts the body of a loop once. This module multiplies bodies by their trip counts, if
the program contains them: as XLA's `known_trip_count`, or as a loop that counts from one constant up to
another. All numbers are per device.
"""

import collections
import dataclasses
import functools
import math
import re

LARGEST = 12  # operations that a `ProgramCost` names
COLLECTIVES = ('all-gather', 'all-reduce', 'all-to-all', 'collective-permute', 'reduce-scatter')

# These operations move no data; a '-done' is counted with its '-start'.
_FREE = {
  'after-all', 'async-start', 'bitcast', 'call', 'conditional', 'constant', 'get-tuple-element',
  'opt-barrier', 'parameter', 'partition-id', 'replica-id', 'slice-start', 'tuple', 'while',
}  # fmt: skip
_SLICES = ('dynamic-slice', 'gather', 'slice')

_COMPUTATION = re.compile(r'(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z0-9-]*)\((.*)')
_CALLED = re.compile(r'\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_MEGASCALE = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
# bf16[4,256]{1,0:T(8,128)(2,1)S(1)}: element type, sizes, order from minor to major, tiles, memory space.
_ARRAY = re.compile(r'\b([a-z]+)(\d*)\w*\[([\d,]*)\](?:\{([\d,]*)([^}]*)\})?')


@dataclasses.dataclass(frozen=True)
class Collective:
  """All collectives of one kind in one run."""

  count: int
  bytes: int  # of the whole arrays that are gathered or reduced
  sent: int  # bytes that each device has to send at least


@dataclasses.dataclass(frozen=True)
class Traffic:
  """The bytes that operations of one kind, result and place in the source move in one run."""

  bytes: int
  operation: str
  result: str
  source: str


@dataclasses.dataclass(frozen=True)
class ProgramCost:
  """The cost of one run of a program.

  collectives: by kind.
  memory_bytes: bytes that operations read from and write to a device's main memory, where arrays are padded
    to tiles. Operations that are fused into another one do not count, nor do arrays in a TPU's vector memory.
  unknown_loops: the number of loops without a known trip count; they count once.
  between_slices: by kind, the data that the program sends between TPU slices (sent = bytes).
  largest: the operations with the largest part of memory_bytes.
  """

  collectives: dict[str, Collective]
  memory_bytes: int
  unknown_loops: int
  between_slices: dict[str, Collective] = dataclasses.field(default_factory=dict)
  largest: tuple[Traffic, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Instruction:
  root: bool
  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  text: str  # from the operands on


def read_program(hlo: str) -> ProgramCost:
  """Returns the cost of the program `compiled.as_text()`.

  All branches count. An asynchronous collective of a TPU occurs in several fusions (its start, operations
  that run meanwhile, its end) with one channel and one origin in the source, and counts once.

  Raises:
    ValueError: the text has no entry computation.
  """
  return _Reader(hlo).cost()


class _Reader:
  def __init__(self, hlo: str):
    devices = re.search(r'\bnum_partitions=(\d+)', hlo) or re.search(r'\breplica_count=(\d+)', hlo)
    self.devices = int(devices[1]) if devices else 1
    self.entry, self.computations = _parse(hlo)
    if self.entry is None:
      raise ValueError('this is not the HLO text of a program: it has no entry computation')
    self.memory_bytes = self.unknown_loops = 0
    self.collectives = {}  # (kind, identity): (count, bytes, sent)
    self.between = {}  # kind: Collective
    self.traffic = collections.Counter()  # by operation, result, source

  def cost(self) -> ProgramCost:
    self._visit(self.entry, 1)
    totals = {}
    for (kind, *_), (times, size, sent) in sorted(self.collectives.items()):
      before = totals.get(kind, Collective(0, 0, 0))
      totals[kind] = Collective(
        before.count + times, before.bytes + times * size, round(before.sent + times * sent)
      )
    largest = tuple(Traffic(size, *which) for which, size in self.traffic.most_common(LARGEST))
    return ProgramCost(totals, self.memory_bytes, self.unknown_loops, self.between, largest)

  def _visit(self, name: str, times: int, fused: bool = False) -> None:
    table = self._table(name)
    for instruction in self.computations[name]:
      if instruction.opcode.removesuffix('-start') in COLLECTIVES:
        self._collective(instruction, table, times, name, fused)
      if instruction.opcode == 'send' and (between := _MEGASCALE.search(instruction.text)):
        size = times * _bytes(table[instruction.operands[0]].type, padded=False, everywhere=True)
        kind = between[1].lower().replace('_', '-')
        before = self.between.get(kind, Collective(0, 0, 0))
        self.between[kind] = Collective(before.count + times, before.bytes + size, before.sent + size)
      if not fused:
        if moved := times * self._traffic(instruction, table):
          self.memory_bytes += moved
          source = re.search(r'op_name="([^"]*)"', instruction.text)
          result = re.sub(r'\{[^}]*\}', '', instruction.type)  # without layouts
          self.traffic[instruction.opcode, result[:100], source[1] if source else ''] += moved
      repeats = times
      if instruction.opcode == 'while':
        trips = self._trip_count(instruction, table)
        self.unknown_loops += trips is None
        repeats *= 1 if trips is None else trips
      inside = fused or instruction.opcode == 'fusion'
      if inside or instruction.opcode in ('while', 'call', 'conditional', 'async-start'):
        branches = _BRANCHES.search(instruction.text)
        called = re.findall(r'[\w.-]+', branches[1]) if branches else []
        for computation in [*called, *_CALLED.findall(instruction.text)]:
          self._visit(computation, repeats, inside)

  @functools.cache  # noqa: B019  (a reader lives as long as its one call)
  def _table(self, name: str) -> dict[str, _Instruction]:
    return {instruction.name: instruction for instruction in self.computations[name]}

  def _collective(self, instruction, table, times, computation, fused):
    kind = instruction.opcode.removesuffix('-start')
    devices = _group_size(instruction.text, self.devices) if kind != 'collective-permute' else 2
    if devices == 1:
      return
    operands = [table[name].type for name in instruction.operands]
    size = sum(_bytes(array, padded=False, everywhere=True) for array in operands)
    size *= devices if kind == 'all-gather' else 1
    part = (devices - 1) / devices
    sent = size * {'all-reduce': 2 * part, 'collective-permute': 1}.get(kind, part)
    # A channel does not identify a collective: all exchanges of a shard_map share one.
    parts = re.findall(r'\b(?:channel_id|op_name|stack_frame_id)=[^\s,}]+', instruction.text)
    key = (kind, *parts) if fused and parts else (kind, computation, instruction.name)
    self.collectives[key] = max(self.collectives.get(key, (0, 0, 0)), (times, size, sent))

  def _trip_count(self, loop, table):
    if known := _TRIP_COUNT.search(loop.text):
      return int(known[1])
    condition = self._table(re.search(r'\bcondition=%?([\w.-]+)', loop.text)[1])
    test = next(i for i in condition.values() if i.root)
    if test.opcode != 'compare' or 'direction=LT' not in test.text:
      return None
    counter, limit = (condition[operand] for operand in test.operands)
    index = re.search(r'\bindex=(\d+)', counter.text)
    carry = table[loop.operands[0]]
    if limit.opcode != 'constant' or index is None or carry.opcode != 'tuple':
      return None
    start = table[carry.operands[int(index[1])]]
    while start.opcode in ('copy', 'bitcast'):
      start = table[start.operands[0]]
    if start.opcode != 'constant':
      return None
    return max(0, _constant(limit) - _constant(start))

  def _traffic(self, instruction, table) -> int:
    opcode, out = instruction.opcode, instruction.type
    if opcode in _FREE or (opcode.endswith('-done') and opcode != 'slice-done'):
      return 0
    if opcode == 'custom-call' and 'AllocateBuffer' in instruction.text:
      return 0
    operands = [table[operand].type for operand in instruction.operands if operand in table]
    if opcode == 'slice-done':  # moves between main and vector memory: one of the two is main memory
      return _bytes(out, everywhere=True)
    if opcode == 'copy-start':
      return _bytes(out)  # (destination, source, context)
    if opcode in _SLICES:
      return _bytes(out) + (_bytes(out, everywhere=True) if _bytes(operands[0]) else 0)
    if opcode == 'dynamic-update-slice':
      return _bytes(operands[1]) + (_bytes(operands[1], everywhere=True) if _bytes(out) else 0)
    if opcode == 'fusion':
      return self._fusion_traffic(instruction, operands)
    return _bytes(out) + sum(map(_bytes, operands))

  def _fusion_traffic(self, fusion, operands) -> int:
    """Counts only the read part of operands that the fusion slices, and only the new part of an operand that
    it updates."""
    table = self._table(_CALLED.search(fusion.text)[1])
    total = 0
    for parameter in (i for i in table.values() if i.opcode == 'parameter'):
      operand = operands[int(parameter.text.partition(')')[0])]
      total += _read_of(parameter, table, _bytes(operand)) if _bytes(operand) else 0
    root = next(i for i in table.values() if i.root)
    outputs = [table[name] for name in root.operands] if root.opcode == 'tuple' else [root]
    arrays = [
      match[0] for match in _ARRAY.finditer(fusion.type)
    ]  # they contain the memory space of an output
    if len(arrays) != len(outputs):  # a custom call with several results
      return total + _bytes(fusion.type)
    for output, array in zip(outputs, arrays, strict=True):
      while output.opcode == 'bitcast':
        output = table[output.operands[0]]
      size = _bytes(array)
      if size and output.opcode == 'dynamic-update-slice':
        size = _bytes(table[output.operands[1]].type, everywhere=True)
      total += size
    return total


def _read_of(parameter, table, whole: int) -> int:
  """The bytes that a fused computation reads from its parameter of `whole` bytes."""
  total = 0
  for user in (i for i in table.values() if parameter.name in i.operands):
    if user.opcode == 'bitcast':
      total += _read_of(user, table, whole)
    elif user.opcode in _SLICES and user.operands[0] == parameter.name:
      total += _bytes(user.type, everywhere=True)
    elif user.opcode != 'dynamic-update-slice' or user.operands[0] != parameter.name:
      return whole
  return min(total, whole)


def _parse(hlo: str):
  """Returns (name of the entry computation, {name: instructions})."""
  entry, computations, inside = None, {}, None
  for line in hlo.splitlines():
    if inside is None:
      if header := _COMPUTATION.match(line):
        inside = computations[header[2]] = []
        entry = header[2] if header[1] else entry
    elif line == '}':  # attributes of kernels may hold line breaks before a bracket
      inside = None
    elif match := _INSTRUCTION.match(line):
      root, name, kind, opcode, text = match.groups()
      operands = tuple(re.findall(r'%([\w.-]+)', _until_closed(text)))
      inside.append(_Instruction(bool(root), name, kind, opcode, operands, text))
  return entry, computations


def _until_closed(text: str) -> str:
  depth = 1
  for i, character in enumerate(text):
    depth += {'(': 1, ')': -1}.get(character, 0)
    if not depth:
      return text[:i]
  return text


def _constant(instruction) -> int:
  return int(instruction.text.partition(')')[0])


def _bytes(type_text: str, *, padded: bool = True, everywhere: bool = False) -> int:
  """The bytes of the arrays of an HLO type in main memory, or `everywhere`. `padded`: to the tiles in which
  they are stored."""
  total = 0
  for kind, bits, sizes, order, rest in _ARRAY.findall(type_text):
    if kind in ('token', 'opaque') or (not everywhere and re.search(r'S\([1-9]', rest)):
      continue
    shape = [int(size) for size in sizes.split(',') if size]
    if padded and (tile := re.search(r'T\(([\d,]+)\)', rest)):
      shape = [shape[int(axis)] for axis in reversed([a for a in order.split(',') if a])]  # major to minor
      tiles = [int(size) for size in tile[1].split(',')]
      shape = [1] * (len(tiles) - len(shape)) + shape
      tiles = [1] * (len(shape) - len(tiles)) + tiles
      shape = [-(-size // t) * t for size, t in zip(shape, tiles, strict=True)]
    total += math.prod(shape) * (8 if kind == 'pred' else int(bits)) // 8
  return total


def _group_size(text: str, devices: int) -> int:
  """The number of devices in one collective."""
  if axes := re.search(r"replica_groups=(?:@\w+|mesh\[([^\]]*)\]).*?\{('[^}]*)\}", text):
    sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes[1] or ''))
    used = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", axes[2])
    return math.prod(int(part or sizes[name]) for name, part in used)
  if several := re.search(r'replica_groups=\[\d+,(\d+)\]', text):
    return int(several[1])
  if listed := re.search(r'replica_groups=\{\{([\d,]+)\}', text):
    return listed[1].count(',') + 1
  return devices
