# 1 rows in 1 blocks; ids_pointer=operand 1, starts=workspace 0, order=workspace 1, error=error 0
def kernel(begin, end, block, ids_pointer, starts, order, error):
    """Sorts 300 ids by counting; equal ones stay in order.

    `order` gets their places. `starts` has how many ids a row has, then where they begin in
    `order`; filling that moves it on to where they end, which is where the next row's begin.
    """
    for i in range(40):
        store_i32(starts, i, int32(0))
    for i in range(300):
        number = int64(load_i64(ids_pointer, i))
        if number >= 0 and number < 40 and number != 0:
            store_i32(starts, number, add(load_i32(starts, number), int32(1)))
        if number < 0 or number >= 40:
            store_i64(error, 1, number)
            store_i64(error, 0, 1)
    total = int32(0)
    for i in range(40):
        count = load_i32(starts, i)
        store_i32(starts, i, total)
        total = add(total, count)
    for i in range(300):
        number = int64(load_i64(ids_pointer, i))
        if number >= 0 and number < 40 and number != 0:
            place = load_i32(starts, number)
            store_i32(order, place, int32(i))
            store_i32(starts, number, add(place, int32(1)))

# 40 rows in 1 blocks; gradient_pointer=operand 0, starts=workspace 0, order=workspace 1, table_pointer=result 0, scratch=workspace 2
def kernel(begin, end, block, gradient_pointer, starts, order, table_pointer, scratch):
    """40 rows of 33, each the sum of its gradients, in the order of the batch.
    `order` has the places of a row's ids, up to `starts` of the row; sort_ids has left them.

    %table: bf16[40,33] = embedding_backward(%gradient, %ids) [padding_index=0, rows=40]
    """
    sums = advance(scratch, block * 192)
    for row in range(begin, end):
        first = int64(0)
        if row > 0:
            first = int64(load_i32(starts, row - 1))
        last = int64(load_i32(starts, row))
        for j in range(33):
            store_f32(sums, j, float32(0.0))
        for k in range(first, last):
            i = int64(load_i32(order, k))
            at = i * 33
            for j in range(33):
                store_f32(sums, j, add(load_f32(sums, j), load_bf16(gradient_pointer, at + j)))
        for j in range(33):
            store_bf16(table_pointer, row * 33 + j, load_f32(sums, j))

# workspaces [192, 1216, 192], in place []
