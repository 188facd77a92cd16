# 300 rows in 1 blocks; weight_pointer=operand 0, ids_pointer=operand 1, y_pointer=result 0, error=error 0
def kernel(begin, end, block, weight_pointer, ids_pointer, y_pointer, error):
    """300 rows of 33.

    %y: bf16[6,50,33] = embedding(%weight, %ids)
    """
    for row in range(begin, end):
        at = row * 33
        number = int64(load_i64(ids_pointer, row))
        if number < 0 or number >= 40:
            store_i64(error, 1, number)
            store_i64(error, 0, 1)
            for j in range(33):
                store_i16(y_pointer, at + j, int16(0))
        else:
            for j in range(33):
                store_i16(y_pointer, at + j, load_i16(weight_pointer, number * 33 + j))

# workspaces [], in place []
