# The TPU VM.
at=(<place>)
# Its zone. Without this gcloud takes its own setting.
at+=(--zone=<zone>)

# The request for the slice <slice>. It waits until the zone has one free.
request=(--node-id=<place> --accelerator-type=<type> --runtime-version=<runtime>)
# Spot machines: cheaper, and taken back at any time. Then run this file again; the program continues.
request+=(<spot_option>)
# Ask for <slice>, and wait until it is there. The price counts from then on.
gcloud compute tpus queued-resources create "${at[@]}" "${request[@]}" || exit
until state=$(gcloud compute tpus queued-resources describe "${at[@]}" --format='value(state.state)' |
    grep -E 'ACTIVE|FAILED|SUSPENDED'); do
    sleep 30
done
# Without <slice> (the request failed, or the slice was taken back) nothing can run: delete the request, and fail.
[ "$state" = ACTIVE ] || { gcloud compute tpus queued-resources delete "${at[@]}" --force --quiet; exit 1; }
# On each host of <slice>: an environment with anytpu and the TPU's driver.
gcloud compute tpus tpu-vm ssh "${at[@]}" --worker=all --command='sudo apt-get update &&
    sudo apt-get install -y python3-venv && python3 -m venv tpu && tpu/bin/pip install "anytpu[tpu]"'
# To each host of <slice>: the program.
gcloud compute tpus tpu-vm scp --recurse <source:sh> <place>: "${at[@]:1}" --worker=all

# The program, as the shell of each host reads it.
program='tpu/bin/python '<words:sh:sh>
# A host starts it again, at most this often, when the run was saved or another host was lost.
program='tpu/bin/anytpu run --max-restarts 0 --max-preemptions <restarts> -- '$program
# The program reads the folder of its checkpoints here.
program='CHECKPOINT_DIR='<checkpoint_dir:sh:sh>' '$program
# On every host at once. It ends with this connection.
gcloud compute tpus tpu-vm ssh "${at[@]}" --worker=all --command="$program"

# Give <slice> back. If this file was ended before: type the line with gcloud. The status is that of the program.
status=$?
gcloud compute tpus queued-resources delete "${at[@]}" --force --quiet
exit "$status"
