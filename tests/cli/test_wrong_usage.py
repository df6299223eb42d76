"""Wrong usages of every command: each gets one sentence that names the thing and a remedy, and status 2, and
changes no file."""

import pytest

from lra_spt.cli import main as cli
from lra_spt.config import mixers
from lra_spt.models import registry

FILES = {
  'file': 'a file where a folder should be',
  'empty.py': '',
  'broken.py': 'def get_config(:\n',
  'binary.py': 'def get_config():\n  return "\0"\n',
  'dict.py': 'def get_config():\n  return {"task": "listops"}\n',
  'keyless.py': 'from lra_spt import config\n\n\n'
  'def get_config():\n  return config.from_sources(ours={"task": "x"})\n',
  'needy.py': 'import no_such_module_anywhere\n',
  'misspelt.py': '\nfrom lra_spt.models import register_mixr\n',
  'runs/bad/config.json': '{"task": "listops"',
  'runs/list/config.json': '[]',
  'runs/keyless/config.json': '{"task": "listops"}',
  'finished/result.json': '{"task": 1}',
  'nothing/readme': 'no run here',
}
TRAIN = ['train', '--config={tiny}:regime=scratch', '--workdir=W', '--config.runtime.data_dir={data}']
PRETRAIN = ['train', '--config={tiny}:regime=masked', '--workdir=W', '--config.runtime.data_dir={data}']
RECORD = ['record', '--model=m', '--predictions=file', '--out=W', '--data_dir=nothing']
DEMO = ['train', '--config=configs/demo.py', '--workdir=W']

USAGES = [
  # the dispatcher
  (['trian'], ["'trian'", 'Did you mean train?']),
  (['--verison'], ["no flag '--verison'", 'train']),
  ([''], ["''", 'train']),
  # list, config
  (['list', 'model'], ["'model'", 'Did you mean models?']),
  (['list', 'tasks', 'models'], ["'models'", '--help']),
  (['list', '--registr=x.py'], ['--registr', 'Did you mean --register?']),
  (['list', '--register=absent.py'], ['absent.py', 'path of a .py file']),
  (['list', '--register=broken.py'], ['broken.py', 'line 1', 'correct it']),
  (['list', '--register='], ['--register', 'empty']),
  (
    ['list', '--register=misspelt.py'],
    ['misspelt.py imports register_mixr in line 2', 'lra_spt.models', 'Did you mean register_mixer?'],
  ),
  (['config'], ['FILE', '--help']),
  (['config', ''], ['FILE', 'empty']),
  (['config', 'configs/imgae.py'], ['configs/imgae.py', 'Did you mean configs/image.py?']),
  (['config', 'image'], ['image', 'Did you mean configs/image.py?']),
  (['config', 'nothing'], ['nothing', 'write a path such as']),
  (['config', 'empty.py'], ['empty.py', 'define one']),
  (['config', 'broken.py'], ['broken.py', 'line 1', 'correct it']),
  (['config', 'binary.py'], ['binary.py', 'correct it']),
  (['config', 'dict.py'], ['dict.py', 'dict', 'from_sources']),
  (['config', 'keyless.py'], ['keyless.py', 'lacks the key model', 'finetune']),
  (['config', 'needy.py'], ['needy.py', 'no_such_module_anywhere', 'install']),
  (['config', 'dict.py:model=s4'], ['dict.py', 'leave out :model=s4']),
  (['config', 'configs/image.py:model=s44'], ['model=s44', 'Did you mean s4?']),
  (['config', 'configs/image.py:modle=s4'], ['modle=s4', 'Did you mean model?']),
  (['config', 'configs/image.py', '--config.seed'], ['--config.seed has no value', '=VALUE']),
  (['config', 'configs/image.py', '--config.seed', '--config.causal=true'], ['--config.seed has no value']),
  (['config', 'configs/image.py', '--config.sede=1'], ['sede', 'seed']),
  (['config', 'configs/image.py', '--config.seed=1', '--config.seed=2'], ['seed is set twice']),
  (['config', 'configs/image.py', '--config.seed=-1'], ['seed is -1', 'at least 0']),
  (['config', 'configs/image.py', '--config.seed='], ['seed takes an integer']),
  (['config', 'configs/image.py', '--config.model=s4'], ['model is a section', 'model.name']),
  (['config', 'configs/image.py', '--config.model.name=s4'], ['--config=configs/image.py:model=s4']),
  (['config', 'configs/image.py:seed=1', '--config.regime', 'scratch'], ['image.py:seed=1,regime=scratch']),
  (
    ['config', 'configs/demo.py', '--config.model.name=s4_random'],
    ['configs/demo.py:model=s4_random cannot be used'],
  ),
  (['config', 'a.py', 'b.py'], ["'b.py'", 'leave it out']),
  # train: flags
  (['train'], ['--config and --workdir', '--help']),
  (['train', '--config=configs/demo.py'], ['--workdir', '--help']),
  (['train', '--config=configs/demo.py', '--workdir='], ['--workdir is empty', 'unset']),
  (['train', '--config=', '--workdir=W'], ['--config is empty']),
  (['train', '--config'], ['--config', 'no value']),
  ([*DEMO, '--config=configs/image.py'], ['--config is given twice', 'keep one']),
  ([*DEMO, '--workdir=V'], ['--workdir is given twice']),
  ([*DEMO, '--dryrun'], ['--dryrun', 'Did you mean --dry_run?']),
  ([*DEMO, '--dry'], ['no flag --dry']),
  ([*DEMO, '--quiet=yes'], ['--quiet', 'alone']),
  ([*DEMO, '--seeds=one'], ['--seeds', "'one'", '0,1,2']),
  ([*DEMO, '--seeds=3..1'], ['--seeds', "'3..1'"]),
  ([*DEMO, '--seeds=1,1'], ['--seeds', 'different']),
  ([*DEMO, '--seeds='], ['--seeds', '0,1,2']),
  ([*DEMO, '--seeds=0,1', '--config.seed=1'], ['seed is set twice']),
  (
    ['train', '--config=configs/demo.py:seed=1', '--workdir=W', '--seeds=0,1'],
    ['--seeds', 'seed=1', 'keep one'],
  ),
  ([*DEMO, '--seeds=0,99999999999'], ['seed is 99999999999', 'below']),
  ([*DEMO, '--register=needy.py'], ['needy.py', 'install']),
  ([*DEMO, '--processes=0'], ['--processes', 'at least 1']),
  ([*DEMO, '--process=x'], ['--process', "'x'"]),
  ([*DEMO, 'extra'], ["'extra'", 'leave it out']),
  # train: folders and runs
  ([*TRAIN[:2], '--workdir=file', TRAIN[3]], ['file', 'another path']),
  ([*TRAIN[:2], '--workdir=file/below', TRAIN[3]], ['file', 'another path']),
  ([*TRAIN[:2], '--workdir=s3://bucket/x', TRAIN[3]], ['s3://bucket/x', 'gs://BUCKET/FOLDER']),
  ([*TRAIN[:2], '--workdir=gs://', TRAIN[3]], ['gs://BUCKET/FOLDER']),
  ([*TRAIN[:2], '--workdir=' + 'x' * 300, TRAIN[3]], ['name is too long', 'shorter']),
  ([*TRAIN[:3], '--config.runtime.data_dir=file'], ['file', 'tiny_listops']),
  ([*TRAIN[:3], '--config.runtime.data_dir='], ['data_dir', 'empty']),
  ([*TRAIN, '--dry_run', '--config.task=listopz'], ["'listopz'", 'Did you mean listops?']),
  ([*TRAIN, '--config.protocol=papre'], ["'papre'", 'Did you mean paper?']),
  ([*TRAIN, '--config.model.mixer.name=s4'], ['model.mixer.name selects', 'model=s4']),
  ([*TRAIN, '--config.model.mixer.name=atention'], ['model.mixer.name selects', 'model=atention is unknown']),
  ([*TRAIN, '--pretrained=nothing'], ['--pretrained', 'regime=scratch']),
  ([*PRETRAIN, '--pretrained='], ['--pretrained is empty']),
  ([*PRETRAIN, '--pretrained=nothing'], ['nothing/config.json']),
  ([*PRETRAIN, '--pretrained=file'], ['file/config.json']),
  ([*PRETRAIN, '--pretrained=runs/bad'], ['runs/bad/config.json', 'not the config of a run']),
  # train: values
  ([*TRAIN, '--config.finetune.optimizer.lr=-1'], ['finetune.optimizer.lr is -1.0', 'at least 0']),
  ([*TRAIN, '--config.finetune.optimizer.weight_decay=-1'], ['finetune.optimizer.weight_decay is -1.0']),
  ([*TRAIN, '--config.finetune.optimizer.b1=1'], ['finetune.optimizer.b1 is 1.0', 'below 1']),
  ([*TRAIN, '--config.finetune.optimizer.clip_norm=-1'], ['finetune.optimizer.clip_norm is -1.0']),
  ([*TRAIN, '--config.finetune.schedule.warmup_steps=-5'], ['finetune.schedule.warmup_steps is -5']),
  ([*TRAIN, '--config.finetune.schedule.factor=-0.5'], ['finetune.schedule.factor is -0.5']),
  ([*TRAIN, '--config.finetune.schedule.milestones=-3,'], ['finetune.schedule.milestones', 'at least 0']),
  ([*TRAIN, '--config.finetune.patience=-1'], ['finetune.patience is -1', 'at least 0']),
  ([*TRAIN, '--config.finetune.epochs=-1'], ['finetune.epochs is -1.0', 'at least 0']),
  ([*TRAIN, '--config.finetune.optimizer.lr=1e-3,0.001'], ['1e-3 and 0.001', 'same number', 'keep one']),
  ([*TRAIN, '--config.finetune.optimizer.weight_decay=0,1,0.'], ['weight_decay lists 0 and 0.,']),
  ([*TRAIN, '--config.finetune.optimizer.lr=1,fast,fast'], ['lists fast twice']),
  ([*TRAIN, '--config.pretrain.optimizer.lr=1e-3,2e-3'], ['pretrain.optimizer.lr lists', 'regime=scratch']),
  ([*TRAIN, '--config.finetune.batch_size=80000000'], ['finetune.batch_size is 80000000', 'lower it']),
  ([*TRAIN, '--config.finetune.batch_size=0'], ['finetune.batch_size is 0', 'at least 1']),
  ([*TRAIN, '--config.finetune.max_seconds=-1'], ['finetune.max_seconds is -1.0']),
  ([*TRAIN, '--config.finetune.pool=media'], ["'media'", 'mean']),
  ([*TRAIN, '--config.finetune.head=linaer'], ["'linaer'", 'Did you mean linear?']),
  ([*PRETRAIN, '--config.pretrain.optimizer.lr=-1'], ['pretrain.optimizer.lr is -1.0']),
  ([*PRETRAIN, '--config.pretrain.mask_rate=1.5'], ['pretrain.mask_rate is 1.5']),
  ([*TRAIN, '--config.model.dropout=1.5'], ['model.dropout is 1.5']),
  ([*TRAIN, '--config.model.depth=0'], ['model.depth is 0']),
  ([*TRAIN, '--config.model.feed_forward=-1'], ['model.feed_forward is -1']),
  ([*TRAIN, '--config.runtime.log_every=0'], ['runtime.log_every is 0']),
  ([*TRAIN, '--config.runtime.devices=-1'], ['runtime.devices', '-1']),
  ([*TRAIN, '--config.runtime.precision=half'], ["'half'", 'bfloat16']),
  ([*TRAIN, '--config.runtime.mesh.data=0'], ['data=0']),
  ([*TRAIN[:2], '--workdir=' + 'x' * 300, TRAIN[3], '--dry_run'], ['name is too long', 'shorter']),
  # check
  (['check'], ['--config', '--help']),
  (['check', '--config=configs/demo.py', '--config='], ['--config is given twice']),
  (['check', '--config=configs/demo.py', '--config.model.mixer.name=x'], ['model=x is unknown']),
  # record, evaluate, export
  (['record', '--task=image'], ['--model', '--data_dir', '--help']),
  ([*RECORD, '--task=imag', '--regime=masked'], ["'imag'", 'Did you mean image?']),
  ([*RECORD, '--task=image', '--regime=maskd'], ["'maskd'", 'Did you mean masked?']),
  ([*RECORD, '--task=image', '--regime=masked'], ['lra-spt prepare cifar10']),
  ([*RECORD, '--task=image', '--regime=masked', '--seed=-1'], ['--seed', 'at least 0']),
  (['evaluate', '--workdir=nothing', '--split=test'], ['nothing', 'no run']),
  (['evaluate', '--workdir=nothing', '--split=train'], ["'train'", 'validation, test']),
  (
    ['evaluate', '--workdir=nothing', '--split=test', '--predictions=file'],
    ['--predictions', 'file', 'exists'],
  ),
  (['export', '--workdir=nothing', '--format=csv'], ['nothing', 'no finished run']),
  (['export', '--workdir=finished', '--format=tex'], ["'tex'", 'csv, json, latex, markdown']),
  (['export', '--workdir=finished', '--format=csv'], ['finished/result.json', 'not the result of a run']),
  (
    ['report', '--workdir=~nobody-of-this-name/x'],
    ['~nobody-of-this-name/x', 'not known here', 'give the folder'],
  ),
  (['report', '--leaderboard', '--workdir=absent'], ['absent', 'no folder']),
  # compile
  (['compile', '--config=configs/demo.py'], ['--topology', '--help']),
  (['compile', '--config=configs/demo.py', '--topology=v9:2x2'], ['v9:2x2']),
  (['compile', '--config=configs/demo.py', '--topology=v5e:2by2'], ['v5e:2by2']),
  (['compile', '--config=configs/demo.py', '--topology=cpu:none'], ['cpu:none', 'at least 1']),
  (['compile', '--config=configs/demo.py', '--topology='], ['--topology is empty']),
  (
    ['compile', '--config=configs/demo.py', '--topology=cpu:1', '--stage=fintune'],
    ['Did you mean finetune?'],
  ),
  (
    ['compile', '--config=configs/demo.py:regime=scratch', '--topology=cpu:1', '--stage=pretrain'],
    ['scratch'],
  ),
  (['compile', '--config=configs/demo.py', '--topology=cpu:1', '--json=no/x.json'], ['--json', 'create it']),
  (['compile', '--config=configs/demo.py', '--topology=cpu:1', '--json=nothing'], ['--json', 'folder']),
  # kernels
  (['kernels', '--workdir=absent'], ['absent', 'folder']),
  (['kernels', '--workdir=nothing'], ['nothing', 'lra-spt train']),
  (['kernels', '--workdir=runs/bad'], ['runs/bad/config.json', 'not the config of a run']),
  (['kernels', '--workdir=runs/list'], ['runs/list/config.json', 'not the config of a run']),
  (['kernels', '--workdir=runs/keyless'], ['runs/keyless/config.json', 'lacks the key model']),
  (['kernels', '--workdir=nothing', '--layers=0'], ['--layers', '1,3,5']),
  (['kernels', '--workdir=nothing', '--lags=-1'], ['--lags', 'at least 0']),
  (['kernels', '--workdir=nothing', '--stage=x'], ['--stage', 'pretrain, finetune']),
  # inside
  (['inside', '--workdir='], ['--workdir is empty']),
  (['inside', '--workdir=nothing'], ['nothing', 'holds no run']),
  (['inside', '--workdir=runs/bad'], ['runs/bad/config.json', 'not the config of a run']),
  (['inside', '--workdir=runs/bad', '--examples=0'], ['--examples', 'at least 1']),
  (['inside', '--workdir=gs://b/run'], ['--workdir is gs://b/run', 'folders only']),
  # report
  (['report', '--workdir='], ['--workdir is empty']),
  (['report', '--workdir=absent'], ['absent', 'folder']),
  (['report', '--workdir=file'], ['file', 'folder']),
  (['report', '--workdir=nothing'], ['nothing', 'lra-spt train']),
  (['report', '--workdir=finished'], ['finished/result.json']),
  (['report', '--workdir=nothing', '--output='], ['--output is empty']),
  # demo
  (['demo', '--seeds=a'], ['--seeds', "'a'"]),
  (['demo', '--workdir='], ['--workdir is empty']),
  (['demo', '--smoke', '--workdir=file'], ['file', 'another path']),
  # prepare
  (['prepare', 'stripes'], ['--data_dir', '--help']),
  (['prepare', '--data_dir=D'], ['DATASET', '--help']),
  (['prepare', 'stripes', '--data_dir='], ['--data_dir is empty']),
  (['prepare', 'strips', '--data_dir=D'], ["'strips'", 'Did you mean stripes?']),
  (['prepare', 'image', '--data_dir=D'], ["'image' is a task", 'lra-spt prepare cifar10']),
  (['prepare', 'stripes', '--data_dir=D', '--examples=0'], ['at least 1']),
  (['prepare', 'stripes', '--data_dir=D', '--seed=-1'], ['seed is -1', 'negative']),
  (['prepare', 'listops', '--data_dir=D', '--workers=many'], ['--workers', "'many'"]),
  (['prepare', 'listops', '--data_dir=D', '--examples=5', '--runner=cloud'], ['cloud', 'beam']),
  (['prepare', 'stripes', '--data_dir=D', '--raw_dir=nothing'], ['--raw_dir', 'leave it out']),
  (['prepare', 'text', '--data_dir=D', '--workers=2'], ['--workers', 'leave it out']),
  (['prepare', 'cifar10', '--data_dir=D', '--raw_dir=absent'], ['absent']),
  (['prepare', 'stripes', '--data_dir=file', '--examples=200'], ['file', 'another path']),
  # inspect
  (['inspect', 'stripes'], ['--data_dir', '--help']),
  (['inspect', 'strips', '--data_dir=D'], ["'strips'", 'Did you mean stripes?']),
  (['inspect', 'imagenet', '--data_dir=D'], ["'imagenet'", '--register', 'list tasks']),
  (['inspect', 'bidmc', '--data_dir=D'], ['bidmc_hr, bidmc_rr, bidmc_spo2']),
  (['inspect', 'cifar10', '--data_dir=D'], ['lra-spt prepare cifar10']),
  (['inspect', 'stripes', '--data_dir=D', '--sample=-1'], ['at least 0']),
  (['inspect', 'stripes', '--data_dir=nothing'], ['nothing/stripes', 'lra-spt prepare stripes']),
  (['inspect', 'stripes', '--data_dir={data}', '--examples=0'], ['at least 1']),
  (['inspect', 'stripes', '--data_dir={data}', '--protocol=clear'], ['--protocol', 'Did you mean clean?']),
  (['inspect', 'stripes', '--data_dir={data}', '--out=no/page.html'], ['--out', 'create it']),
  (['inspect', 'stripes', '--data_dir={data}', '--out=nothing'], ['--out', 'folder']),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """The working directory, with FILES in it. Mixers of other tests are removed, because users do not see them
  in sentences that list all."""
  for name in mixers.registered_outside():
    for known in (mixers._registered, registry._MIXERS):
      monkeypatch.delitem(known, name, raising=False)
  for name, text in FILES.items():
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  monkeypatch.chdir(tmp_path)
  return tmp_path


@pytest.mark.parametrize('arguments, words', USAGES, ids=[' '.join(usage[0])[:90] for usage in USAGES])
def test_a_wrong_usage(folder, tiny_data, repository, capsys, arguments, words):
  before = contents(folder)
  tiny = repository / 'tests' / 'tiny_config.py'
  status = cli.main(
    [argument.replace('{tiny}', str(tiny)).replace('{data}', str(tiny_data)) for argument in arguments]
  )
  printed = capsys.readouterr()
  assert status == 2, printed
  assert printed.err.startswith('lra-spt: ')
  sentence = printed.err.removeprefix('lra-spt: ').rstrip('\n')
  assert '\n' not in sentence
  without_places = sentence  # the limit must not depend on where the checkout lies
  for place in (folder, tiny_data, repository):
    without_places = without_places.replace(str(place), '')
  assert len(without_places) < 600
  assert 'Errno' not in sentence
  assert all(word in sentence for word in words), sentence
  assert contents(folder) == before


def contents(folder):
  return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob('*')}
