; y = relu(x W + b) for 2 examples, on a chip whose array has 8 x 8 cells.
; x is in steps of 0.5, W in steps of 0.25, y in steps of 0.25: the multiplier is 0.5 * 0.25 / 0.25 = 0.5.

.name "dense by hand"
.batch 2
.host_bytes 128                             ; x: 2 rows of 32 bytes, then y: 2 rows
.design array=8
.input "x", [1, 1, 3], host_address=0, scale=0.5
.output "y", [1, 1, 2], host_address=64, scale=0.25
.tag "dense", kind="dense", macs=12         ; part 0

.block 0                                    ; parameters of 8 lanes: 8 biases, then 8 multipliers
.int32 10, -6, 0, 0, 0, 0, 0, 0
.float32 0.5, 0.5, 0, 0, 0, 0, 0, 0
.block 1                                    ; a tile of 8 x 8: a row for each input, a column for each output
.int8 2, -4, 0, 0, 0, 0, 0, 0
.int8 6, 8, 0, 0, 0, 0, 0, 0
.int8 0, 4, 0, 0, 0, 0, 0, 0
.zero 40

debug_tag 0
read_weights.parameters 0, 1                ; into the parameter FIFO
read_weights.tile 1, 1                      ; into the weight FIFO
read_host_memory 0, 0, 2                    ; x to units 0 and 1
set_configuration PITCH, 1                  ; rows of x lie one unit of 32 bytes apart
sync matrix, read                           ; x must be there
matrix_multiply address=0, accumulator=0, rows=2
set_configuration OUT_PITCH, 1
set_configuration LOW, 0                    ; ReLU: the zero point of y is 0
set_configuration HIGH, 127
sync activate, matrix                       ; the sums must be there
activate.scale source=0, target=8, rows=2   ; y to units 8 and 9
sync write, activate
write_host_memory 64, 8, 2
halt
