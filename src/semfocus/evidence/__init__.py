"""Results that stay: a study's finished and unfinished runs as a few small files, and everything built from them.

    results/<study>-<name>/            <name> as in the lab: the size, with a hash behind it where something was changed
      manifest.json.gz                 the question: arms, seeds, configs, the command that asks it
      runs.jsonl.gz                    a line per run: config, environment, summary, status, wall time
      curves.csv.gz                    a line per run and epoch: losses and accuracies, six digits
      diagnostics.jsonl.gz, measured.jsonl.gz, probes.csv.gz     where the study has such
      clock.json                       the time of one step of each pattern alone
      index.html, figures/*.svg, claims.md, claims.json, speed.md, runs.csv      built from the files above

``semfocus results add`` writes the first part from a lab's folder, ``semfocus results build`` the second from the
first. Files hold no dates but those of the runs, and equal content gives equal bytes. What is left out: weights,
snapshots, the running averages of the training steps (``running_loss``, ``running_accuracy``), the gradient's norm but
for a run's first epoch and diagnosed ones, seconds epoch by epoch (their sum stays), and of large grids (the loss
surface) all but those of the first run of each arm.
"""
