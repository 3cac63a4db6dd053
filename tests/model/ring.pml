/* A second opinion on tests/model/ring.py, by another search in another language: one ring, its writer and its reader,
 * sleep on both sides, x86-TSO store buffers, SIGKILL of either at any step. Run by test_ring_spin.py.
 *
 * A lost wake-up is an invalid end state: somebody waits and nothing can happen. What is torn or lost fails an assert.
 * Planted with -D: NO_FENCE_BEFORE_SECOND_LOOK, NO_FENCE_BEFORE_LOOK_AT_BELL, NO_SECOND_LOOK, TAIL_BEFORE_DATA,
 * NEVER_ASKS_FOR_ROOM, NO_LAST_LOOK. */

#define CAPACITY 2
#define UNITS 5

#define TAIL 0
#define HEAD 1
#define ASLEEP 2
#define WANTS 3
#define DATA 4

byte word[6];                            /* what the other process sees */
chan writes = [6] of { byte, byte };     /* what it does not see yet, first in first out */
chan reads = [6] of { byte, byte };
byte bell_of_reader, bell_of_writer;     /* bytes in the socket, each way; a third one is dropped */
bool writer_killed, reader_killed, writer_ended, reader_ended;

#define FENCE(buffer) (empty(buffer))
#define RING(bell) if :: bell < 2 -> bell++ :: else fi

active proctype store_buffers()
{
    byte place, value;
end:
    do
    :: atomic { writes?place, value -> word[place] = value }
    :: atomic { reads?place, value -> word[place] = value }
    od
}

active proctype killer()
{
    if
    :: writer_killed = true
    :: reader_killed = true
    :: skip
    fi
}

active proctype writer()
{
    byte at, seen;
    {
        do
        :: at == UNITS -> break
        :: at < UNITS && at - seen < CAPACITY ->
#ifdef TAIL_BEFORE_DATA
            writes!TAIL, at + 1;
            writes!(DATA + at % CAPACITY), at + 1;
#else
            writes!(DATA + at % CAPACITY), at + 1;
            writes!TAIL, at + 1;
#endif
            at++;
#ifndef NO_FENCE_BEFORE_LOOK_AT_BELL
            FENCE(writes);
#endif
            if
            :: word[ASLEEP] -> RING(bell_of_reader)
            :: else
            fi
        :: at < UNITS && at - seen >= CAPACITY ->
            seen = word[HEAD];
            if
            :: at - seen < CAPACITY
            :: else ->
#ifndef NEVER_ASKS_FOR_ROOM
                writes!WANTS, 1;
#endif
#ifndef NO_FENCE_BEFORE_SECOND_LOOK
                FENCE(writes);
#endif
#ifndef NO_SECOND_LOOK
                seen = word[HEAD];
#endif
                if
                :: at - seen < CAPACITY -> writes!WANTS, 0
                :: else ->
                    (bell_of_writer > 0 || reader_ended);
                    writes!WANTS, 0;
                    if
                    :: bell_of_writer > 0 -> bell_of_writer = 0
                    :: else -> break             /* the end, behind all bells */
                    fi
                fi
            fi
        od
    } unless { writer_killed };
    FENCE(writes);
    writer_ended = true
}

active proctype reader()
{
    byte at, seen;
    bool last;
    {
        do
        :: seen = word[TAIL];
            if
            :: seen > at ->
                do
                :: at < seen -> assert(word[DATA + at % CAPACITY] == at + 1); at++
                :: else -> break
                od;
                reads!HEAD, at;
                FENCE(reads);
                if
                :: word[WANTS] -> RING(bell_of_writer)
                :: else
                fi
            :: seen == at && last -> break
            :: seen == at && !last ->
                reads!ASLEEP, 1;
#ifndef NO_FENCE_BEFORE_SECOND_LOOK
                FENCE(reads);
#endif
#ifndef NO_SECOND_LOOK
                seen = word[TAIL];
#endif
                if
                :: seen > at -> reads!ASLEEP, 0
                :: else ->
                    (bell_of_reader > 0 || writer_ended);
                    reads!ASLEEP, 0;
                    if
                    :: bell_of_reader > 0 -> bell_of_reader = 0
                    :: else ->
#ifdef NO_LAST_LOOK
                        break
#else
                        last = true
#endif
                    fi
                fi
            fi
        od;
        assert(at == word[TAIL])
    } unless { reader_killed };
    FENCE(reads);
    reader_ended = true
}
