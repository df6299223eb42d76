# lra-spt in a container, for one accelerator or none:
#
#   docker build -t lra_spt .                                  # CPU
#   docker build -t lra_spt --build-arg ACCELERATOR=tpu .      # or cuda12, cuda13 (needs the NVIDIA runtime)
#   docker run --rm -v "$PWD:/work" lra_spt demo --smoke --workdir=/work/demo_run
#
# It has the versions of constraints.txt. Keep runs and data in a mounted folder: the container's own disk is
# deleted with it. Not built so far.
FROM python:3.12-slim
ARG ACCELERATOR=
WORKDIR /opt/lra_spt
COPY requirements.txt constraints.txt setup.py pyproject.toml MANIFEST.in LICENSE README.md CITATION.cff ./
COPY lra_spt lra_spt
COPY configs configs
COPY data_prep data_prep
RUN pip install --no-cache-dir -c constraints.txt ".${ACCELERATOR:+[$ACCELERATOR]}"
WORKDIR /work
# On SIGTERM a run saves its state and ends with status 75; docker stop waits 10 s for it, or -t SECONDS.
ENTRYPOINT ["lra-spt"]
