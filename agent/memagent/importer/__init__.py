"""Import of runs that other trackers recorded: TensorBoard, W&B and MLflow.

1. A module of `sources` reads files of one tracker into `SourceRun`s. It changes nothing there.
2. `run_record` turns each into the messages that an agent would have sent, in a run file.
3. The run id comes from what identifies the run in its source. `watermark` and `run_folder`
   add only what a run has gained since its last import.
4. Files may be torn, hostile or in use. An unreadable part costs a sentence, never another run.
"""
