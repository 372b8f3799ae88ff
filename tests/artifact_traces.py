"""Small traces in the artifact's format, for tests."""

from pathlib import Path

COLUMNS = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
#: Model, milliseconds of an iteration, of data, GPU and network stages on 8 GPUs (muri.md C.1).
MODELS = (
    ("gpt2", 437, 0.6, 419, 49),
    ("a2c", 555, 502, 14, 0.4),
    ("shufflenet_v2_x1_0", 957, 769, 57, 10),
    ("vgg16", 214, 82, 75, 66),
    ("bert", 192, 0.5, 167, 59),
)


def rows(jobs: int = 24, *, at_once: bool = False, models: tuple[int, ...] = (0, 1, 2, 3, 4)) -> list[str]:
    """Jobs of 8 and 16 GPUs that keep 64 GPUs busy: groups form."""
    out = []
    for i in range(jobs):
        model, iteration, data, gpu, network = MODELS[models[i % len(models)]]
        iterations = 3000 + 977 * (i * 7 % 11)
        duration = iteration * iterations // 1000 * 1000
        submit = 0 if at_once else 61_000 * i
        gpus = 16 if i % 5 == 4 else 8
        out.append(
            f"{i},{gpus},{submit},{iterations},{model},4,{duration},1000,{iteration},{data},{gpu},{network},{i % 2}"
        )
    return out


def write_trace(path: Path, lines: list[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([COLUMNS, *(rows() if lines is None else lines)]) + "\n")
    return path
