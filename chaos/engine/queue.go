package engine

import "slices"

// queue is first in, first out, except that a preempted job returns to the front. The zero value is
// empty.
type queue struct {
	jobs []*Job
	head int
}

func (q *queue) len() int { return len(q.jobs) - q.head }

func (q *queue) front() *Job { return q.jobs[q.head] }

func (q *queue) pushBack(j *Job) {
	if q.head > 32 && q.head > len(q.jobs)/2 {
		n := copy(q.jobs, q.jobs[q.head:])
		clear(q.jobs[n:])
		q.jobs, q.head = q.jobs[:n], 0
	}
	q.jobs = append(q.jobs, j)
}

func (q *queue) pushFront(j *Job) {
	if q.head == 0 {
		q.jobs = slices.Insert(q.jobs, 0, j)
		return
	}
	q.head--
	q.jobs[q.head] = j
}

func (q *queue) popFront() *Job {
	j := q.jobs[q.head]
	q.jobs[q.head] = nil
	q.head++
	if q.head == len(q.jobs) {
		q.jobs, q.head = q.jobs[:0], 0
	}
	return j
}

func (q *queue) remove(j *Job) {
	if i := slices.Index(q.jobs[q.head:], j); i >= 0 {
		q.jobs = slices.Delete(q.jobs, q.head+i, q.head+i+1)
	}
}

func remove(jobs []*Job, j *Job) []*Job {
	if i := slices.Index(jobs, j); i >= 0 {
		return slices.Delete(jobs, i, i+1)
	}
	return jobs
}
